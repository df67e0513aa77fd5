"""Keys and values in 8 bits: a token's head of D values is kept as D integers, or floats of 8 bits, and one
scale that they are multiplied by when they are read. Integers have ZERO added, so that all are positive: of
such bytes a GPU makes floats without its slow conversion.

The scales of a block lie behind its values, in the same memory, so that whoever has the one finds the other:
for each head, block_size * D bytes of values, and then block_size scales in bfloat16, whose range is that of
float32. Both begin at a multiple of ALIGNMENT bytes. L layers, N blocks, G heads of keys and values, D head
size, R heads of tokens.
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.triton_runtime import INTERPRETED, tl, triton

# By dtype, the largest value that there is.
LIMITS = {torch.uint8: 127.0, torch.float8_e4m3fn: 448.0}
ZERO = 128  # the byte that stands for 0, and 255 for the largest value
ALIGNMENT = 16  # bytes
LEAST_SCALE = 2.0**-126  # float32's least normal number: what is smaller reads as 0
SCALE_BYTES = 2
# Triton's interpreter loses the carry when it rounds to 8 bits: 1.99 becomes 1.
ROUNDS_FIRST = tl.constexpr(INTERPRETED)


def is_eight_bit(cache: Tensor) -> bool:
    """Whether a cache's values are kept in 8 bits, with scales."""
    return cache.dtype in LIMITS


def bytes_of_head(block_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one head's keys, or values, take of a block: scales included, where there are any."""
    values = block_size * head_dim * dtype.itemsize
    if dtype not in LIMITS:
        return values
    return aligned(values) + aligned(block_size * SCALE_BYTES)


def aligned(num_bytes: int) -> int:
    """So many bytes, up to the next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def scales_of(cache: Tensor) -> Tensor:
    """The scales [.., G, block_size] of an 8-bit cache [.., G, block_size, D], or of its layers or blocks: a
    view."""
    *lead, block_size, D = cache.shape
    *strides, _, _ = cache.stride()
    first = cache.storage_offset() + aligned(block_size * D)
    in_bytes = cache.view(torch.uint8).as_strided((*lead, block_size * SCALE_BYTES), (*strides, 1), first)
    return in_bytes.view(torch.bfloat16)


def quantize(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Heads [.., D] in 8 bits, and their scales [..] in bfloat16: a head's largest value is the dtype's.

    Values read back are off by half a scale at most in integers, and by 1/16 of themselves or 2^-10 of a
    scale in float8_e4m3fn. Zeros stay zeros. A head with a value that is not finite reads as NaN.
    """
    x, limit = heads.float(), LIMITS[dtype]
    largest = x.abs().amax(-1)
    scales = (largest / limit).clamp(min=LEAST_SCALE)
    scales = scales.where(largest < torch.inf, torch.nan).to(torch.bfloat16)
    x = (x / scales.float()[..., None]).nan_to_num(0.0).clamp(-limit, limit)
    return (torch.floor(x + 0.5) + ZERO if dtype == torch.uint8 else x).to(dtype), scales


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Heads [.., D], from what `quantize` made of them, in a dtype to compute in."""
    x = values.float() - (ZERO if values.dtype == torch.uint8 else 0)
    return (x * scales.float()[..., None]).to(dtype)


def as_stored(heads: Tensor, cache: Tensor) -> Tensor:
    """What heads [.., D] are once they are in the cache and read from there, in their own dtype."""
    return dequantize(*quantize(heads, cache.dtype), heads.dtype) if is_eight_bit(cache) else heads


def write_heads(cache: Tensor, place: object, heads: Tensor) -> None:
    """cache[place] = heads, as the cache keeps them. place: an index into all dimensions but the last."""
    if not is_eight_bit(cache):
        cache[place] = heads
        return
    cache[place], scales_of(cache)[place] = quantize(heads, cache.dtype)


def read_heads(cache: Tensor, place: object, dtype: torch.dtype) -> Tensor:
    """cache[place], in a dtype to compute in."""
    if not is_eight_bit(cache):
        return cache[place]
    return dequantize(cache[place], scales_of(cache)[place], dtype)


# --- in kernels -----------------------------------------------------------------------------------------
#
# Of a cache in 16 or 32 bits, each of these gives what it is given, and the scales are zeros that nobody
# reads: what is not used is not compiled. Scales stand beside values as [.., 1].


@triton.jit
def find_scales(cache_ptr, head, block_size, D):
    """Where the scales of blocks' heads begin. head: offsets from the cache's beginning, of any shape."""
    values = (block_size * D + 15) // 16 * 16  # ALIGNMENT
    return (cache_ptr + head + values).to(tl.pointer_type(tl.bfloat16))


@triton.jit
def load_scales(cache_ptr, head, pos, live, block_size, D):
    """The scales [T] of tokens at places pos [T] of heads that begin at head [T]; 0 where not live."""
    if cache_ptr.dtype.element_ty.primitive_bitwidth == 8:
        place = find_scales(cache_ptr, head, block_size, D) + pos
        scales = tl.load(place, mask=live, other=0.0, eviction_policy="evict_first").to(tl.float32)
    else:
        scales = tl.zeros([pos.shape[0]], tl.float32)
    return scales


@triton.jit
def unscaled(heads):
    """Heads as they came from the cache, in float32, and not yet multiplied by their scales."""
    if heads.dtype == tl.uint8:
        # The bits of 2^23 + byte: one instruction, where a conversion takes four times as long.
        x = (heads.to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0  # 2^23 + ZERO
    else:
        x = heads.to(tl.float32)
    return x


@triton.jit
def dequantized(heads, scales, dtype: tl.constexpr):
    """Heads as they came from the cache, in a dtype to compute in."""
    if heads.dtype.primitive_bitwidth == 8:
        heads = (unscaled(heads) * scales).to(dtype)
    return heads


@triton.jit
def quantized(heads, cache_ptr):
    """Heads as the cache keeps them, and their scales: the arithmetic of `quantize`."""
    kept: tl.constexpr = cache_ptr.dtype.element_ty
    scales = 0.0
    if kept.primitive_bitwidth == 8:
        limit: tl.constexpr = 127.0 if kept == tl.uint8 else 448.0
        x = heads.to(tl.float32)
        size = tl.abs(x)
        size = tl.where(size < float("inf"), size, float("inf"))  # so that a NaN is the largest, too
        largest = tl.max(size, axis=len(heads.shape) - 1, keep_dims=True)
        scales = tl.maximum(largest / limit, 1.1754943508222875e-38)  # LEAST_SCALE
        scales = tl.where(largest < float("inf"), scales, float("nan")).to(tl.bfloat16).to(tl.float32)
        x = tl.where(scales == scales, x / scales, 0.0)
        x = tl.minimum(tl.maximum(x, -limit), limit)
        if kept == tl.uint8:
            x = tl.floor(x + 0.5) + 128.0  # ZERO
        elif ROUNDS_FIRST:
            x = rounded_to_fp8(x)
        heads = x.to(kept)
    return heads, scales


@triton.jit
def rounded_to_fp8(x):
    """Values of float8_e4m3fn, from such of float32: to the nearest, or between two to the even one."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    small = tl.floor(tl.abs(x) * 512.0 + 0.5) / 512.0  # below the normal values, in steps of 2^-9
    small = tl.where(x < 0, -small, small)
    return tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))


@triton.jit
def store_scales(cache_ptr, head, pos, scales, mask, block_size, D):
    """Store the scales of heads that `quantized` made. head: where the blocks' heads begin; pos: the tokens'
    places in them; each a number, or as the scales are."""
    if cache_ptr.dtype.element_ty.primitive_bitwidth == 8:
        place = find_scales(cache_ptr, head, block_size, D) + pos + tl.zeros(scales.shape, tl.int32)
        tl.store(place, scales.to(tl.bfloat16), mask=mask)


# --- contract -------------------------------------------------------------------------------------------


def check_caches(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    num_heads: int | str,
    like: Tensor,  # [.., D]
    takes_eight_bit: bool = False,
) -> None:
    """Raises ValueError naming the cache [N, G, block_size, D] whose shape, strides, dtype or device does not
    fit queries, keys or values `like`. num_heads: G, or a name for any.

    takes_eight_bit: whether it may be in 8 bits, with room for scales behind the values of each head.
    """
    D = like.shape[-1]
    is_kept = takes_eight_bit and is_eight_bit(k_cache_layer)
    expected = {
        "dtype": k_cache_layer.dtype if is_kept else like.dtype,
        "device": like.device,
        "last_stride_is_1": True,
    }
    check_tensor("k_cache_layer", k_cache_layer, shape=("N", num_heads, "block_size", D), **expected)
    check_tensor("v_cache_layer", v_cache_layer, shape=tuple(k_cache_layer.shape), **expected)
    if v_cache_layer.stride() != k_cache_layer.stride():
        raise ValueError(
            f"v_cache_layer has strides {v_cache_layer.stride()}, k_cache_layer {k_cache_layer.stride()}"
        )
    if is_kept:
        least = bytes_of_head(*k_cache_layer.shape[2:], k_cache_layer.dtype)
        sides = zip(k_cache_layer.shape[:2], k_cache_layer.stride(), strict=False)
        from_head_to_head = min((stride for size, stride in sides if size > 1), default=least)
        if from_head_to_head < least or k_cache_layer.stride(2) != D:
            raise ValueError(
                f"k_cache_layer has strides {k_cache_layer.stride()}, expected {D} from token to token and "
                f"{least} or more from head to head: in 8 bits, scales lie behind a head's values"
            )
