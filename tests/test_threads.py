"""On a CPU one thread computes, unless OMP_NUM_THREADS says otherwise."""

import json
import sys

import pytest
import torch

from labkit import lab
from labkit.bench import __main__ as bench_main
from labkit.threads import VARIABLE


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """PyTorch as it starts on a machine with two cores, with nothing set."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("own", "threads"), [(None, "1 thread"), ("2", "2 threads")])
def test_a_lesson_computes_on_one_thread_unless_told_otherwise(monkeypatch, capsys, own, threads):
    if own is not None:
        monkeypatch.setenv(VARIABLE, own)
    lab.start("00")
    assert torch.get_num_threads() == int(threads[0])
    assert capsys.readouterr().out.splitlines()[1].endswith(f" CPU, {threads}")


def test_with_a_gpu_a_lesson_leaves_the_threads_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    lab.start("00")
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_a_benchmark_computes_on_one_thread_and_its_record_says_so(monkeypatch, tmp_path):
    out = tmp_path / "out.json"
    line = "host-time --device cpu --rungs 10 --batch-sizes 1 --steps 2 --rounds 1 --json"
    monkeypatch.setattr(sys, "argv", ["bench", *line.split(), str(out)])
    bench_main.main()
    assert json.loads(out.read_text())["host"]["threads"] == torch.get_num_threads() == 1
