"""The command of a flood over HTTP; the flood itself is in `tests/serve/test_many_clients.py`."""

import sys

import pytest

from labkit.results.files import load_file


@pytest.mark.nightly
def test_the_command_in_a_flood(soak, tmp_path, capsys):
    soak(f"http --device cpu --open 60 --num-requests 200 --at-once 50 --json {tmp_path}/made.json")
    (sample,) = load_file(tmp_path / "made.json").samples
    assert (sample["blocks_lost"], sample["most_open"], sum(sample["ended"].values())) == (0, 60, 260)
    assert len(sample["memory"]) == 2
    assert not sys.platform.startswith("linux") or min(sample["memory"]) > 2**20
    assert "0 blocks lost" in capsys.readouterr().out
