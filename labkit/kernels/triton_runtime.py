"""What Triton can do on this machine. Kernel files take `triton` and `tl` from here, never from the package.

    from labkit.kernels.triton_runtime import require_triton, tl, triton

With a CUDA GPU, kernels are compiled for it. Without one, they run in Triton's interpreter, on CPU
tensors. Where Triton cannot be had, kernel files still import: see `AbsentTriton`.
"""

import functools
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import LabkitError
from labkit.kernels.interpreter import mend_calls, mend_loops, mend_numbers, mend_types

if TYPE_CHECKING:
    import torch


class TritonUnavailableError(LabkitError, RuntimeError):
    """A Triton kernel was asked for where none can run."""


@dataclass(frozen=True)
class TritonStatus:
    """How Triton kernels run in this process, and why: compiled ("native"), in the interpreter, or not at
    all."""

    mode: Literal["native", "interpreter", "off"]
    reason: str


class AbsentTriton:
    """Stands in for `triton` and `tl`, so that a kernel file imports without them.

    Every name is this object again, and a decorator returns the function as it is: that carries a file
    through `@triton.jit`, `@triton.autotune(...)` and `BLOCK: tl.constexpr`. Nothing can be launched; a
    kernel's wrapper says so by calling `require_triton` first.
    """

    def __getattr__(self, name: str) -> "AbsentTriton":
        if name.startswith("__"):  # what Python asks of any object must get its usual answer
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self


def has_cuda_gpu() -> bool:
    """Whether torch can use a CUDA GPU. False, not an error, where torch itself cannot be imported."""
    try:
        import torch
    except Exception:  # missing or broken; `python -m labkit.doctor` tells which
        return False
    return torch.cuda.is_available()


def status_of(import_error: Exception | None, has_gpu: bool, interpreted: bool) -> TritonStatus:
    """The rule behind `triton_status`. interpreted: Triton was imported with its interpreter on."""
    if isinstance(import_error, ModuleNotFoundError) and import_error.name == "triton":
        return TritonStatus("off", "Triton is not installed")
    if import_error is not None:
        return TritonStatus("off", f"Triton does not import: {type(import_error).__name__}: {import_error}")
    if interpreted and has_gpu:
        return TritonStatus("interpreter", "TRITON_INTERPRET is set, though there is a CUDA GPU")
    if interpreted:
        return TritonStatus("interpreter", "there is no CUDA GPU")
    if has_gpu:
        return TritonStatus("native", "there is a CUDA GPU")
    return TritonStatus(
        "off",
        "there is no CUDA GPU, and Triton was imported before labkit could turn its interpreter on: import "
        "labkit first (Transformers' GPT-2 imports Triton too), or start Python with TRITON_INTERPRET=1",
    )


HAS_CUDA_GPU = has_cuda_gpu()
if not HAS_CUDA_GPU:
    # `triton.jit` reads this while it decorates, and Triton's own library is decorated when `triton` is
    # imported: set any later, kernels would fail at their first `tl.sum`.
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter

    if triton.__version__.startswith("3.6."):
        mend_loops(interpreter)  # on a GPU, too: `labkit.watch.record_accesses` interprets there
    IMPORT_ERROR = None
    INTERPRETED = not isinstance(tl.sum, triton.JITFunction)
    if INTERPRETED:
        mend_calls(interpreter, tl)
        mend_numbers(interpreter)
        mend_types(tl.core)
except Exception as error:  # missing or broken: either way the lessons go on in plain PyTorch
    triton = tl = AbsentTriton()
    IMPORT_ERROR = error
    INTERPRETED = False

try:
    from triton.tools.tensor_descriptor import TensorDescriptor as Boxes  # a tensor as a TMA sees it

    HAS_BOXES = True
except Exception:
    Boxes = AbsentTriton()
    HAS_BOXES = False

try:  # the language below Triton, for Hopper GPUs only; it is young, and its names may change
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    HAS_GLUON = True
except Exception:
    gluon = gl = hopper = TensorDescriptor = AbsentTriton()
    HAS_GLUON = False

STATUS = status_of(IMPORT_ERROR, HAS_CUDA_GPU, INTERPRETED)


def triton_status() -> TritonStatus:
    """How Triton kernels run here. Settled when this module is imported, so asking costs nothing."""
    return STATUS


def require_triton() -> None:
    """Raise TritonUnavailableError, saying why and what to do, if no Triton kernel can run here."""
    if STATUS.mode == "off":
        raise TritonUnavailableError(
            f"{STATUS.reason}. The plain PyTorch path needs no Triton; `python -m labkit.doctor` says more."
        )


def check_launchable(device: "torch.device") -> None:
    """Raise TritonUnavailableError if no kernel can run on tensors of this device."""
    require_triton()
    if STATUS.mode == "native" and device.type != "cuda":
        raise TritonUnavailableError(
            f'kernels are compiled for the GPU here and the tensors are on {device}. Use attention="plain"'
        )


@triton.jit
def _add_lanes(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < n
    total = tl.load(x_ptr + lanes, mask=mask) + tl.load(y_ptr + lanes, mask=mask)
    tl.store(out_ptr + lanes, total, mask=mask)


def check_triton() -> None:
    """Run one tiny kernel. Raises whatever Triton raises, or TritonUnavailableError for a wrong sum."""
    require_triton()
    import torch

    device = "cuda" if HAS_CUDA_GPU else "cpu"
    x, y = torch.arange(10.0, device=device), torch.ones(10, device=device)
    out = torch.full_like(x, float("nan"))
    _add_lanes[(3,)](x, y, out, 10, BLOCK=4)
    if not torch.equal(out, x + y):
        raise TritonUnavailableError(f"a test kernel computed {out.tolist()}, not {(x + y).tolist()}")


@functools.cache
def early_launch(device: "torch.device") -> dict[str, bool]:
    """Launch options of a kernel that may begin while the one before it ends: programmatic dependent launch,
    on Hopper and newer GPUs; elsewhere the kernel is launched in order.

    The kernel has a constant EARLY. If it is set, the kernel lets the next one begin, does what does not
    depend on the one before, and then waits for that.
    """
    import torch

    is_early = not INTERPRETED and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if is_early else {"EARLY": False}


def is_hopper(device: "torch.device") -> bool:
    """Whether a device has an H100's instructions, some of which no later GPU has."""
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def shared_memory_of(device: "torch.device") -> int:
    """Bytes of shared memory that a program can have on a device. The interpreter has no limit."""
    import torch

    return (
        sys.maxsize if INTERPRETED else torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    )
