"""The memory of this process: what is taken is seen, and what is given back."""

import pytest
import torch

from labkit.bench.memory import STATM, bytes_held, resident_bytes

SIZE = 256 << 20


@pytest.mark.skipif(not STATM.exists(), reason="elsewhere only the peak is known")
def test_memory_that_is_taken_is_seen_until_it_is_given_back():
    before = resident_bytes()
    taken = torch.ones(SIZE, dtype=torch.uint8)
    assert taken[-1] == 1 and resident_bytes() - before > 0.9 * SIZE
    del taken
    assert resident_bytes() - before < 0.1 * SIZE


def test_a_process_without_a_gpu_holds_its_own_memory_alone():
    assert bytes_held(torch.device("cpu")) == pytest.approx(resident_bytes(), rel=0.01)


def test_where_the_system_has_no_such_file_it_is_the_most_that_it_ever_was(monkeypatch, tmp_path):
    now = resident_bytes()
    monkeypatch.setattr("labkit.bench.memory.STATM", tmp_path / "statm")
    assert resident_bytes() >= 0.99 * now > 0


def test_windows_says_nothing(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    assert resident_bytes() == 0
