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
INTERPRETS = tl.constexpr(INTERPRETED)


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

    Values read back are off by half a scale at most in integers; in float8_e4m3fn, whose numbers have 4
    significant bits, by 1/16 of themselves or 2^-10 of a scale. Zeros stay zeros. A head with a value that
    is not finite reads as NaN.
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
    if cache.dtype not in LIMITS:  # as `is_eight_bit`, without a call: rung 00 is here for every token
        cache[place] = heads
        return
    cache[place], scales_of(cache)[place] = quantize(heads, cache.dtype)


def read_heads(cache: Tensor, place: object, dtype: torch.dtype) -> Tensor:
    """cache[place], in a dtype to compute in."""
    if not is_eight_bit(cache):
        return cache[place]
    return dequantize(cache[place], scales_of(cache)[place], dtype)


def read_slots(cache: Tensor, block: Tensor, head: Tensor, pos: Tensor, dtype: torch.dtype) -> Tensor:
    """cache[block, head, pos] of a layer's cache [N, G, block_size, D], as `read_heads` gives it; on a CPU
    several times as fast, where the cache is contiguous and has one dtype."""
    if is_eight_bit(cache) or not cache.is_contiguous():
        return read_heads(cache, (block, head, pos), dtype)
    _, G, block_size, D = cache.shape
    slots = (block * G + head) * block_size + pos
    return cache.reshape(-1, D).index_select(0, slots.flatten()).view(*slots.shape, D)


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


def can_be_read(kept: torch.dtype, head_dim: int) -> bool:
    """Whether decode attention's kernels can read heads that are kept so: those of 8 bits in words of four
    values."""
    return kept.itemsize > 1 or head_dim % 4 == 0


@triton.jit
def load_words(cache_ptr, row, BLOCK_D: tl.constexpr, live, D):
    """Heads, of which the values begin at row [T], with four values in a word: [T, BLOCK_D / 4] int32. As
    bytes, each would have a register of its own."""
    w = tl.arange(0, BLOCK_D // 4)
    place = cache_ptr.to(tl.pointer_type(tl.int32)) + (row // 4)[:, None] + w[None, :]
    mask = live[:, None] & (w < D // 4)[None, :]
    return tl.load(place, mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def unpacked(words, kept: tl.constexpr, dtype: tl.constexpr):
    """The values [T, D] in words [T, D / 4], in a dtype to compute in, and not yet multiplied by their
    scales: whole numbers up to 127, or floats of 4 significant bits, which are exact in any.

    A GPU converts bytes to floats slowly. But 0x6400 + byte are the bits of 1024 + byte in float16.
    """
    if INTERPRETS:
        x0, x1 = byte_of(words, 0, kept), byte_of(words, 1, kept)
        x2, x3 = byte_of(words, 2, kept), byte_of(words, 3, kept)
    elif kept == tl.uint8:
        x0, x1, x2, x3 = tl.inline_asm_elementwise(
            """{
            .reg .b32 low, high, zero;
            mov.b32 zero, 0x64806480;
            prmt.b32 low, $4, 0x64646464, 0x5140;
            prmt.b32 high, $4, 0x64646464, 0x5342;
            sub.f16x2 low, low, zero;
            sub.f16x2 high, high, zero;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        x0, x1, x2, x3 = tl.inline_asm_elementwise(
            """{
            .reg .b16 first, last;
            .reg .b32 low, high;
            mov.b32 {first, last}, $4;
            cvt.rn.f16x2.e4m3x2 low, first;
            cvt.rn.f16x2.e4m3x2 high, last;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    x = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    return tl.reshape(x, [words.shape[0], words.shape[1] * 4]).to(dtype)


@triton.jit
def byte_of(words, i: tl.constexpr, kept: tl.constexpr):
    """Value i of each word, in float32; without instructions that Triton's interpreter does not know."""
    byte = ((words >> (8 * i)) & 0xFF).to(tl.uint8)
    x = byte.to(kept, bitcast=True).to(tl.float32)
    return x - 128.0 if kept == tl.uint8 else x  # ZERO


@triton.jit
def dequantized(heads, scales, dtype: tl.constexpr):
    """Heads as `quantized` made them, or as they came from the cache, in a dtype to compute in."""
    if heads.dtype.primitive_bitwidth == 8:
        x = heads.to(tl.float32)
        if heads.dtype == tl.uint8:
            x -= 128.0  # ZERO
        heads = (x * scales).to(dtype)
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
        elif INTERPRETS:  # for Triton's interpreter loses the carry as it rounds: 1.99 becomes 1
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
