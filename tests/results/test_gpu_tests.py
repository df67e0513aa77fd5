"""The record of the GPU tests."""

import json

import pytest
from made_records import HOST

from labkit.errors import RecordError
from labkit.results import GpuTests, load_gpu_tests
from labkit.results.gpu_tests import GPU_TESTS

TESTS = GpuTests("2026-01-01T00:00:00+00:00", "0" * 40, 10, 1, 2, 61, 2, HOST)


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "gpu_tests.json"
    path.write_text(json.dumps(TESTS.to_dict()))
    assert load_gpu_tests(path) == TESTS


def test_nothing_of_the_shipped_record_is_lost():
    assert load_gpu_tests().to_dict() == json.loads(GPU_TESTS.read_text(encoding="utf-8"))


def test_a_record_with_a_hole_is_named(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**TESTS.to_dict(), "passed": "all"}))
    with pytest.raises(RecordError, match=r"mine\.json: passed must be a whole number"):
        load_gpu_tests(path)
