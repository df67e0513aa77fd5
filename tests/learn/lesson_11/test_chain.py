"""A recorded layer: what its kernels take, what their bytes take at the memory's rate, and the rest."""

import pytest

from labkit import results
from labkit.learn.lesson_11.chain import KernelTimes, kernel_us, layer_times

RECORD = results.load("decode_kernels_h100")


def test_a_kernel_takes_its_bytes_and_its_wait():
    times = KernelTimes("attention", 1.0, 2.0, 4.0)
    assert times.bytes_us == 3.0 and times.us == 7.0


def test_a_layer_of_gpt2_has_the_bytes_of_its_weights_and_of_its_tokens():
    layer = layer_times(RECORD.step("10", 64), bandwidth=1e12)
    assert [times.name for times in layer] == [
        "norm_linear",
        "attention",
        "linear_residual",
        "norm_linear",
        "linear_residual",
    ]
    E, N = 768, 277  # width; tokens of a request that are read or written
    weights = [2 * (n * k + n) * 1e-6 for n, k in ((3 * E, E), (E, E), (4 * E, E), (E, 4 * E))]  # us
    assert [times.weights_us for times in layer if times.weights_us] == pytest.approx(weights)
    assert [times.cache_us for times in layer] == pytest.approx([0, 64 * N * 2 * E * 2 * 1e-6, 0, 0, 0])


def test_the_sum_of_a_layer_is_a_twelfth_of_what_the_trace_has_for_all():
    for batch_size in (1, 8, 64):
        step = RECORD.step("10", batch_size)
        us = kernel_us(step)
        layer = layer_times(step, RECORD.bandwidth)
        assert set(us) == {"norm_linear", "linear_residual", "attention", "embed"}
        wanted = 2 * us["norm_linear"] + 2 * us["linear_residual"] + us["attention"]
        assert sum(times.us for times in layer) == pytest.approx(wanted)
        assert all(times.waits_us > 0 for times in layer)


def test_a_kernel_whose_bytes_take_longer_than_itself_does_not_wait():
    layer = layer_times(RECORD.step("10", 64), bandwidth=1e11)
    assert layer[1].waits_us == 0
