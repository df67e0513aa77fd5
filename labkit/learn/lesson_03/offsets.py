"""Lesson 03: strides of a pool, as a kernel gets them, and the pool that 32 bits are too few for."""

from torch import Tensor

from labkit.kernels.triton_runtime import triton


def sizes(cache: Tensor, **new: Tensor) -> dict[str, int]:
    """What a kernel is told about a layer's cache [N, H, block_size, D] and new tensors [B, H, D].

    By the names of the kernel's parameters: stride_n, stride_h and stride_t; for new=..., new_stride_b and
    new_stride_h; D; and BLOCK_D, the lanes that a head needs, a power of 2."""
    strides = dict(zip(("stride_n", "stride_h", "stride_t"), cache.stride(), strict=False))
    for name, tensor in new.items():
        strides[f"{name}_stride_b"], strides[f"{name}_stride_h"], _ = tensor.stride()
    D = cache.shape[-1]
    return strides | {"D": D, "BLOCK_D": triton.next_power_of_2(D)}


def first_block_past_int32(numbers_a_block: int) -> int:
    """The lowest block index whose offset, counted in numbers from the pool's start, does not fit into an
    int32."""
    return -(-(2**31) // numbers_a_block)


def pool_past_int32(num_pointers: int, H: int, D: int, block_size: int = 64) -> dict[str, int | float]:
    """How large a cache of 16-bit keys and values is when offsets in it no longer fit into an int32, in all.

    num_pointers: how many pointers the cache has for keys, and as many for values: one per layer, or one for
    all layers. Each has that many blocks behind it.
    """
    numbers = H * block_size * D
    block = first_block_past_int32(numbers)
    size = num_pointers * block * numbers * 2 * 2
    return {
        "pointers": num_pointers,
        "numbers per block": numbers,
        "first bad block": block,
        "cache (GB)": round(size / 1e9, 1),
    }
