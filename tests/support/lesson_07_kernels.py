"""An attention kernel such as lesson 07's reader writes, and the same with one thing wrong."""

from labkit.kernels.triton_runtime import tl, triton
from labkit.learn.lesson_07.attention import attend, launch


@triton.jit
def plain_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    stride_b,
    stride_h,
    k_cache_ptr,
    v_cache_ptr,
    stride_n,
    table_ptr,
    stride_s,
    lengths_ptr,
    slots_ptr,
    out_ptr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WRONG: tl.constexpr = "",
):
    b, h, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    slot = tl.load(slots_ptr + b)
    if WRONG == "row of the batch":
        slot = b
    length, row_ptr = tl.load(lengths_ptr + slot), table_ptr + slot * stride_s
    mine = b * stride_b + h * stride_h + d
    query, key, value = tl.load(query_ptr + mine), tl.load(key_ptr + mine), tl.load(value_ptr + mine)
    at, past = length, length
    if WRONG == "one too far":
        at = length + 1
    if WRONG == "forgets the last":
        past = length - 1
    if (length >= 0) | (WRONG == "padding"):
        block = tl.load(row_ptr + at // BLOCK_SIZE)
        if WRONG == "first block":
            block = tl.load(row_ptr)
        block = block.to(tl.int64)
        head = h
        if WRONG == "one head":
            head = h * 0
        place = block * stride_n + (head * BLOCK_SIZE + at % BLOCK_SIZE) * D + d
        if WRONG != "no keys":
            tl.store(k_cache_ptr + place, key)
        if WRONG == "keys as values":
            value = key
        tl.store(v_cache_ptr + place, value)
    out = attend(query, key, value, past, row_ptr, h, k_cache_ptr, v_cache_ptr, stride_n, D, BLOCK_SIZE)
    tl.store(out_ptr + (b * tl.num_programs(1) + h) * D + d, out.to(out_ptr.dtype.element_ty))


class WrongKernel:
    """A launch of the kernel with one thing wrong."""

    def __init__(self, wrong):
        self.wrong = wrong

    def __call__(self, *tensors):
        return launch(self, *tensors)

    def __getitem__(self, grid):
        return lambda *args, **sizes: plain_kernel[grid](*args, **sizes, WRONG=self.wrong)
