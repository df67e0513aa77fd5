"""A recorded layer: what its kernels take, what their bytes take at the memory's rate, and the rest."""

import pytest

from labkit import results
from labkit.learn.lesson_11.played_gpu import KernelTimes, kernel_us, layer_times

RECORD = results.load("decode_kernels_h100")


def test_a_kernel_takes_its_bytes_and_its_wait():
    times = KernelTimes("attention", 1.0, 2.0, 4.0)
    assert times.bytes_us == 3.0 and times.us == 7.0


def test_the_sum_of_a_layer_is_a_twelfth_of_what_the_trace_has_for_all():
    for batch_size in (1, 8, 64):
        step = RECORD.step("10", batch_size)
        us = kernel_us(step)
        layer = layer_times(step, RECORD.bandwidth)
        assert set(us) == {"norm_linear", "linear_residual", "attention", "embed"}
        wanted = 2 * us["norm_linear"] + 2 * us["linear_residual"] + us["attention"]
        assert sum(times.us for times in layer) == pytest.approx(wanted)
        assert all(times.waits_us > 0 for times in layer)
