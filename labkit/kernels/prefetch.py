"""Bytes that a program will read, asked into the L2 cache while it waits for the kernel before it.

Only a kernel that begins early (`early_launch`) has such a wait, and the instruction is of the same GPUs.
"""

from torch import Tensor

from labkit.kernels.triton_runtime import tl, triton

ALIGNMENT = 16  # bytes: of where a prefetch begins, and of its size


def can_prefetch(matrix: Tensor) -> bool:
    """Whether each row of a matrix, with any dimensions before it, begins and ends where a prefetch can."""
    sizes = matrix.shape[-1], matrix.storage_offset()
    return matrix.is_contiguous() and all(size * matrix.element_size() % ALIGNMENT == 0 for size in sizes)


@triton.jit
def prefetch_bytes(pointers, num_bytes):
    """Ask for num_bytes from each pointer on, of one tensor's shape; for none where that is not above 0."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred is_asked;
        setp.gt.s32 is_asked, $2, 0;
        @is_asked cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [pointers.to(tl.int64), num_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
