"""Writing one new token per request into the paged cache: B requests, H heads of keys, D head size, N blocks.

Three forms, each narrower than the one before, with fewer arguments from the host. Requests that are written
own their blocks, so no two programs write to the same slot.
"""

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.eight_bit import check_caches
from labkit.kernels.triton_runtime import check_launchable, tl, triton

# --- any requests of the batch, at any positions --------------------------------------------------------


def kv_append_plain(
    k_cache_layer: Tensor,  # [N, H, block_size, D]
    v_cache_layer: Tensor,
    key_new: Tensor,  # [B, H, D]
    value_new: Tensor,
    batch_idx: Tensor,  # [F] which requests are written, the others are left alone
    block_idx: Tensor,  # [F] their blocks
    pos: Tensor,  # [F] the slots in these blocks
) -> None:
    """Write F of the batch's new keys and values by indexed assignment: the oracle of `kv_append_triton`.

    Index tensors are int32 or int64. Raises ValueError for arguments that do not fit.
    """
    check_kv_append(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos, batch_idx)
    batch_idx, block_idx, pos = batch_idx.long(), block_idx.long(), pos.long()
    k_cache_layer[block_idx, :, pos] = key_new[batch_idx]
    v_cache_layer[block_idx, :, pos] = value_new[batch_idx]


def kv_append_triton(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    batch_idx: Tensor,
    block_idx: Tensor,
    pos: Tensor,
) -> None:
    """Write any F of the batch's new keys and values, at any positions, in one kernel: one program per
    written request, which loops over its heads.

    Takes and raises what `kv_append_plain` does, and TritonUnavailableError where no kernel runs.
    """
    tensors = k_cache_layer, v_cache_layer, key_new, value_new
    check_kv_append(*tensors, block_idx, pos, batch_idx)
    check_launchable(key_new.device)
    _, H, D = key_new.shape
    block_d = block_d_of(D)
    _kv_append_kernel[(len(batch_idx), triton.cdiv(D, block_d))](
        *tensors, batch_idx, block_idx, pos, *strides_of(*tensors), H, D, BLOCK_D=block_d
    )


@triton.jit
def _kv_append_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, batch_idx_ptr, block_idx_ptr, pos_ptr,
    cache_stride_n, cache_stride_h, cache_stride_t, key_stride_b, key_stride_h, value_stride_b,
    value_stride_h,
    H, D,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    in_head = d < D
    b = tl.load(batch_idx_ptr + i).to(tl.int64)
    block = tl.load(block_idx_ptr + i).to(tl.int64)  # int64: in a large pool, block * stride passes 2^31
    pos = tl.load(pos_ptr + i).to(tl.int64)
    place = block * cache_stride_n + pos * cache_stride_t + d
    for h in range(0, H):
        key = tl.load(key_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head)
        value = tl.load(value_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head)
        tl.store(k_cache_ptr + place + h * cache_stride_h, key, mask=in_head)
        tl.store(v_cache_ptr + place + h * cache_stride_h, value, mask=in_head)


# --- the whole batch, all at one position ---------------------------------------------------------------


def kv_append_full_batch_plain(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_idx: Tensor,  # [B]
    pos: int,  # the slot, the same for all
) -> None:
    """Write the whole batch, all requests at one position: request b goes to slot `pos` of block
    block_idx[b].

    Plain PyTorch: the oracle of `kv_append_triton_full_batch`. Raises ValueError for arguments that do not
    fit.
    """
    check_kv_append(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos)
    block_idx = block_idx.long()
    k_cache_layer[block_idx, :, pos] = key_new
    v_cache_layer[block_idx, :, pos] = value_new


def kv_append_triton_full_batch(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_idx: Tensor,
    pos: int,
) -> None:
    """Write the whole batch, all requests at one position `pos`, in one kernel: one program per request and
    head (write-up 061).

    Takes and raises what `kv_append_full_batch_plain` does, and TritonUnavailableError where no kernel runs.
    """
    tensors = k_cache_layer, v_cache_layer, key_new, value_new
    launch_whole_batch(_kv_append_full_batch_kernel, tensors, block_idx, pos)


# `pos` is another number in every step: specialized for, it would be compiled again for 1 and for 16.
@triton.jit(do_not_specialize=["pos"])
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr,
    pos,
    cache_stride_n, cache_stride_h, cache_stride_t, key_stride_b, key_stride_h, value_stride_b,
    value_stride_h,
    D,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    in_head = d < D
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    place = block * cache_stride_n + h * cache_stride_h + pos * cache_stride_t + d
    key = tl.load(key_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head)
    value = tl.load(value_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head)
    tl.store(k_cache_ptr + place, key, mask=in_head)
    tl.store(v_cache_ptr + place, value, mask=in_head)


# --- the whole batch, each at its own position ----------------------------------------------------------


def kv_append_identity_pos_plain(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_idx: Tensor,  # [B]
    pos: Tensor,  # [B]
) -> None:
    """Write the whole batch, each request at its own position: request b goes to slot pos[b] of block
    block_idx[b].

    Plain PyTorch: the oracle of `kv_append_triton_identity_pos`. Raises ValueError for arguments that do not
    fit.
    """
    check_kv_append(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos)
    block_idx, pos = block_idx.long(), pos.long()
    k_cache_layer[block_idx, :, pos] = key_new
    v_cache_layer[block_idx, :, pos] = value_new


def kv_append_triton_identity_pos(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_idx: Tensor,
    pos: Tensor,
) -> None:
    """Write the whole batch, each request at its own position, in one kernel: one program per request and
    head (write-up 062).

    Takes and raises what `kv_append_identity_pos_plain` does; TritonUnavailableError where no kernel runs.
    """
    tensors = k_cache_layer, v_cache_layer, key_new, value_new
    launch_whole_batch(_kv_append_identity_pos_kernel, tensors, block_idx, pos)


@triton.jit
def _kv_append_identity_pos_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos_ptr,
    cache_stride_n, cache_stride_h, cache_stride_t, key_stride_b, key_stride_h, value_stride_b,
    value_stride_h,
    D,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    in_head = d < D
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    pos = tl.load(pos_ptr + b).to(tl.int64)
    place = block * cache_stride_n + h * cache_stride_h + pos * cache_stride_t + d
    key = tl.load(key_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head)
    value = tl.load(value_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head)
    tl.store(k_cache_ptr + place, key, mask=in_head)
    tl.store(v_cache_ptr + place, value, mask=in_head)


# --- what all of them rely on ---------------------------------------------------------------------------


def launch_whole_batch(
    kernel: Any, tensors: tuple[Tensor, Tensor, Tensor, Tensor], block_idx: Tensor, pos: Tensor | int
) -> None:
    """Launch a kernel that has one program per request and head, and writes to slot `pos` of their blocks.
    tensors: both caches of a layer, the new keys and the new values."""
    key_new = tensors[2]
    check_kv_append(*tensors, block_idx, pos)
    check_launchable(key_new.device)
    B, H, D = key_new.shape
    block_d = block_d_of(D)
    kernel[(B, H, triton.cdiv(D, block_d))](
        *tensors, block_idx, pos, *strides_of(*tensors), D, BLOCK_D=block_d
    )


def strides_of(k_cache_layer: Tensor, _: Tensor, key_new: Tensor, value_new: Tensor) -> tuple[int, ...]:
    """The strides that the kernels take: of the last dimension they are 1, and of both caches the same."""
    return *k_cache_layer.stride()[:3], *key_new.stride()[:2], *value_new.stride()[:2]


def block_d_of(D: int) -> int:
    """Numbers of a head of D that one program moves at a time: a power of 2."""
    return 128 if D >= 128 else 64


def check_kv_append(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_idx: Tensor,
    pos: Tensor | int,
    batch_idx: Tensor | None = None,
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    With LABKIT_DEBUG=1 the indices' values are checked, too, for which the host waits for the GPU.
    """
    check_tensor("key_new", key_new, shape=("B", "H", "D"), last_stride_is_1=True)
    B, H, D = key_new.shape
    like_key = {"dtype": key_new.dtype, "device": key_new.device, "last_stride_is_1": True}
    check_tensor("value_new", value_new, shape=(B, H, D), **like_key)
    check_caches(k_cache_layer, v_cache_layer, H, key_new)
    N, _, block_size, _ = k_cache_layer.shape
    num_written = B
    indices = [("block_idx", block_idx, N)]
    if batch_idx is not None:
        check_tensor("batch_idx", batch_idx, shape=("F",))
        num_written = len(batch_idx)
        indices.append(("batch_idx", batch_idx, B))
    if isinstance(pos, Tensor):
        indices.append(("pos", pos, block_size))
    elif not 0 <= pos < block_size:
        raise ValueError(f"pos is {pos}, outside of 0 to {block_size - 1}")
    for name, tensor, limit in indices:
        check_tensor(name, tensor, shape=(num_written,), device=key_new.device, last_stride_is_1=True)
        if tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{name} is {tensor.dtype}, expected torch.int32 or torch.int64")
        check_range(name, tensor, limit)
