"""How many programs a multiprocessor holds, and in how many waves they run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.learn.before_03.occupancy import H100, Kernel

kernels = st.builds(
    Kernel,
    st.integers(1, 20_000),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.integers(16, 255),
    st.integers(0, 227),
)


@pytest.mark.parametrize(
    ("kernel", "room", "fit", "occupancy"),
    [
        (Kernel(1, 4, 32), (32, 16, 16, 228), 16, 1.0),
        (Kernel(1, 4, 128), (32, 16, 4, 228), 4, 0.25),
        (Kernel(1, 4, 65), (32, 16, 7, 228), 7, 7 / 16),  # 65 registers are 72: 2,304 per warp
        (Kernel(1, 1, 32), (32, 64, 64, 228), 32, 0.5),
        (Kernel(1, 8, 32, shared_kb=100), (32, 8, 8, 2), 2, 0.25),
        (Kernel(1, 4, 32, shared_kb=227), (32, 16, 16, 1), 1, 1 / 16),
        (Kernel(1, 4, 32, shared_kb=228), (32, 16, 16, 0), 0, 0.0),
        (Kernel(1, 16, 255), (32, 4, 0, 228), 0, 0.0),
    ],
    ids=str,
)
def test_the_scarcest_decides(kernel, room, fit, occupancy):
    assert kernel.room() == dict(zip(("programs", "warps", "registers", "shared memory"), room, strict=True))
    assert (kernel.fit(), kernel.occupancy()) == (fit, occupancy)


def test_what_does_not_fit_has_no_waves():
    with pytest.raises(ValueError, match=r"no program fits: .*'shared memory': 0"):
        Kernel(1, shared_kb=228).waves()


@given(kernels)
def test_every_program_has_its_place_in_one_wave(kernel):
    if not kernel.fit():
        return
    waves = kernel.waves()
    assert sum(map(sum, waves)) == kernel.programs
    assert len(waves) == math.ceil(kernel.programs / (kernel.fit() * H100.multiprocessors))
    assert all(len(wave) == H100.multiprocessors and max(wave) <= kernel.fit() for wave in waves)
    assert all(max(wave) - min(wave) <= 1 for wave in waves)
    assert 0 < kernel.busy_share() <= 1 and 0 < kernel.occupancy() <= 1
