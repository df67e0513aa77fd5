"""Lesson 03's toy write: launches are recorded and counted, and drawn without what says the same twice."""

from triton_marks import needs_triton

from labkit.kvcache import FullBatchWrite
from labkit.learn.lesson_03.toy import TritonWrite, launched

pytestmark = needs_triton


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
