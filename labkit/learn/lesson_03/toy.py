"""Lesson 03: a toy write whose launches are recorded, one that is wrong, and what runs say of writes."""

from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from labkit.engine.parts import Part
from labkit.kernels import kv_append_triton, kv_append_triton_full_batch, kv_append_triton_identity_pos
from labkit.kernels.triton_runtime import tl, triton
from labkit.kvcache import FullBatchWrite, IdentityPosWrite
from labkit.learn.gates.gate import raised
from labkit.results import Comparison
from labkit.watch import KernelRun, LaunchRecorder, record_accesses

# --- one layer's write, small enough to draw each number, and what a part launches for it --------------

N, H, BLOCK_SIZE, D = 5, 2, 4, 6  # blocks, heads, slots, numbers in a head
BLOCKS = (3, 0, 2)  # of the three requests
DIMENSIONS = {  # by how many a tensor has
    4: ("block", "head", "slot", "d"),
    3: ("request", "head", "d"),
    1: ("request",),
}


class TritonWrite(IdentityPosWrite):
    """The package's write by its kernels, in Triton's interpreter too."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._full_batch, self._generic = kv_append_triton_full_batch, kv_append_triton
        self._identity_pos = kv_append_triton_identity_pos


def runs_of(part: Part, slots: Sequence[int], device: torch.device | str = "cpu") -> list[KernelRun]:
    """What a part for `kv_write` launches to write three requests to these slots of BLOCKS: each launch, with
    what its programs read and write."""
    generator = torch.Generator().manual_seed(0)
    k_cache, v_cache = torch.zeros(2, N, H, BLOCK_SIZE, D, device=device)
    qkv = torch.randn(len(BLOCKS), 3, H, D, generator=generator).to(device)  # as the model makes them
    with record_accesses() as runs:
        part(torch.device(device)).write(
            k_cache, v_cache, qkv[:, 1], qkv[:, 2], range(len(BLOCKS)), list(BLOCKS), list(slots)
        )
    return runs


def launched(part: Part, slots: Sequence[int], device: torch.device | str = "cpu") -> str:
    """How many kernels, of how many programs, a part launches for the toy's write, and whether a plain twin
    wrote beside them."""
    try:
        with LaunchRecorder() as seen:
            runs = runs_of(part, slots, device)
    except Exception as error:  # whatever the reader's code raises
        return f"kernels launched for the toy's write: not counted, because it {raised(error)}"
    grids = " and ".join(f"{len(run.programs)} programs, grid {run.grid}" for run in runs)
    told = f"kernels launched for the toy's write: {len(runs)}" + (f" ({grids})" if runs else "")
    too = "; the plain twin wrote, too: leave the call of `super()` out"
    is_plain = any(launch.name == "aten.index_put_" for launch in seen.launches)  # how a plain twin writes
    return told + (too if runs and is_plain else "")


def sizes(cache: Tensor, **new: Tensor) -> dict[str, int]:
    """What a kernel is told about a layer's cache [N, H, block_size, D] and new tensors [B, H, D].

    By the names of the kernel's parameters: stride_n, stride_h and stride_t; for new=..., new_stride_b and
    new_stride_h; D; and BLOCK_D, the lanes that a head needs, a power of 2."""
    strides = dict(zip(("stride_n", "stride_h", "stride_t"), cache.stride(), strict=False))
    for name, tensor in new.items():
        strides[f"{name}_stride_b"], strides[f"{name}_stride_h"], _ = tensor.stride()
    D = cache.shape[-1]
    return strides | {"D": D, "BLOCK_D": triton.next_power_of_2(D)}


def drawn(run: KernelRun) -> dict[str, tuple[str, ...]]:
    """The tensors of a launch to draw, with the names of their dimensions; values lie as keys do and are
    left out."""
    return {
        name: DIMENSIONS[len(layout.shape)]
        for name, layout in run.layouts.items()
        if not name.startswith("v") and run.touched(name)
    }


# --- writes that are wrong on purpose ------------------------------------------------------------------


@triton.jit
def no_mask_kernel(
    cache_ptr, new_ptr, blocks_ptr, slot,
    stride_n, stride_h, stride_t, new_stride_b, new_stride_h, D, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    block = tl.load(blocks_ptr + b).to(tl.int64)
    numbers = tl.load(new_ptr + b * new_stride_b + h * new_stride_h + d)
    tl.store(cache_ptr + block * stride_n + h * stride_h + slot * stride_t + d, numbers)


class WithoutMask(FullBatchWrite):
    """Writes a whole batch at one slot by a kernel whose programs store all their lanes, whether or not the
    head has as many numbers."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._full_batch = self._without_mask

    def _without_mask(
        self, k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, blocks: Tensor, slot: int
    ) -> None:
        for cache, new in ((k_cache, key), (v_cache, value)):
            no_mask_kernel[tuple(key.shape[:2])](cache, new, blocks, slot, **sizes(cache, new=new))


# --- what runs say of their writes ----------------------------------------------------------------------


def saved_us(comparison: Comparison, num_steps: int = 1) -> float:
    """Microseconds by which a step got shorter: the difference of median runs of `num_steps` steps."""
    seconds = median(comparison.before_samples) - median(comparison.after_samples)
    return 1e6 * seconds / num_steps
