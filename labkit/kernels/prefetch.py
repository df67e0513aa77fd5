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
    """Ask for num_bytes from each pointer [COUNT] on, once; for none where that is not above 0."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred is_asked;
        setp.gt.s32 is_asked, $2, 0;
        @is_asked cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [pointers.to(tl.int64), num_bytes * held_first(pointers.shape[0])],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def held_first(COUNT: tl.constexpr):
    """Which thread does what is to be done once for each of COUNT numbers: 1 there, 0 in all others [COUNT].

    An instruction runs in every thread. Where a program has more threads than numbers, several hold the same
    one, thread i number i % COUNT, and each would ask for its bytes.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .pred is_first;
        .reg .u32 thread, threads;
        mov.u32 thread, %tid.x;
        mov.u32 threads, %ntid.x;
        setp.le.u32 is_first, threads, $2;
        setp.eq.or.u32 is_first, thread, $1, is_first;
        selp.u32 $0, 1, 0, is_first;
        }""",
        "=r,r,r",
        [tl.arange(0, COUNT), tl.full([COUNT], COUNT, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
