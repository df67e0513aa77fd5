"""Traced steps: what the GPU does and does not do, and which step is asked for."""

import json

import pytest
from made_records import record_of, traced

from labkit.errors import RecordError
from labkit.results import KernelTime, TracedStep

KERNELS = (KernelTime("product", 36, 60.0), KernelTime("Memcpy DtoH (Device -> Pinned)", 1, 3.0))


def test_a_step_is_busy_or_idle():
    step = traced("10", 64, 200.0, 150.0, KERNELS)
    assert (step.idle_us, step.idle_share, step.num_kernels) == (50, 0.25, 36)  # a copy is no kernel
    assert [kernel.is_copy for kernel in step.kernels] == [False, True]
    assert TracedStep.from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_a_step_that_was_traced_twice_has_the_median_of_its_times():
    record = record_of("decode_kernels", [traced("09", 64, 800.0, 500.0), traced("09", 64, 802.0, 510.0)])
    assert record.steps == {("09", 64): traced("09", 64, 801.0, 505.0)}


def test_a_step_is_found_by_its_rung_and_batch():
    record = record_of("decode_kernels", [traced("10", 2, 100.0, 95.0), traced("09", 2, 100.0, 90.0)])
    assert record.step("10", 2) == traced("10", 2, 100.0, 95.0)
    with pytest.raises(RecordError, match="no step of rung 10 at B = 3"):
        record.step("10", 3)


def test_the_gpu_s_work_by_batch_size():
    samples = [
        traced(rung, b, 900.0, 100.0 + us * b) for b in (1, 2, 4) for rung, us in (("07", 99), ("08", 50))
    ]
    record = record_of("decode_kernels", samples)
    assert record.gpu_busy_us("08") == {1: 150, 2: 200, 4: 300}
    with pytest.raises(RecordError, match="no runs of rung '06'; it has 07, 08"):
        record.gpu_busy_us("06")


def test_idle_time_by_rung():
    record = record_of(
        "decode_kernels", [traced("10", 2, 100.0, 95.0, KERNELS), traced("10", 64, 100.0, 50.0)]
    )
    assert list(record.table(2).loc["10"]) == [100, 95, "5 %", 37]
    assert record.table(2).index.name == "rung"
