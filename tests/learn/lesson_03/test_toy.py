"""Lesson 03's toy write: launches are recorded and counted, and drawn without what says the same twice."""

import pytest
from triton_marks import needs_triton

from labkit.kvcache import FullBatchWrite
from labkit.learn.lesson_03.toy import TritonWrite, drawn, launched, runs_of

pytestmark = needs_triton


@pytest.mark.parametrize(("slots", "grid"), [((1, 1, 1), (3, 2, 1)), ((1, 1, 2), (3, 1))])
def test_the_packages_kernels_are_recorded_in_one_launch(slots, grid):
    (run,) = runs_of(TritonWrite, slots)
    assert run.grid == grid and run.strays() == []
    assert launched(TritonWrite, slots) == (
        f"kernels launched for the toy's write: 1 ({len(run.programs)} programs, grid {grid})"
    )
    written = {run.layouts["k_cache_ptr"].index_of(o)[0::2] for o, _, _ in run.touched("k_cache_ptr")}
    assert written == set(zip((3, 0, 2), slots, strict=True))


def test_values_are_not_drawn_and_dimensions_have_names():
    (run,) = runs_of(TritonWrite, (1, 1, 1))
    assert drawn(run) == {
        "k_cache_ptr": ("block", "head", "slot", "d"),
        "key_ptr": ("request", "head", "d"),
        "block_idx_ptr": ("request",),
    }


def test_a_plain_twin_beside_a_kernel_is_told():
    class Both(TritonWrite):
        def write(self, *arguments):
            FullBatchWrite.write(FullBatchWrite(self._device), *arguments)
            return super().write(*arguments)

    assert launched(Both, (1, 1, 1)) == (
        "kernels launched for the toy's write: 1 (6 programs, grid (3, 2, 1)); the plain twin wrote, too: "
        "leave the call of `super()` out"
    )


def test_what_launches_nothing_and_what_raises_is_told():
    class Raises(FullBatchWrite):
        def write(self, *arguments):
            raise ValueError("no")

    assert launched(FullBatchWrite, (1, 1, 1)) == "kernels launched for the toy's write: 0"
    assert launched(Raises, (1, 1, 1)).startswith(
        "kernels launched for the toy's write: not counted, because it raised ValueError: no"
    )
