"""Which tests need Triton, where kernels run and in which precisions, and how a GPU launches them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.kernels import checks, triton_status

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
NATIVE = triton_status().mode == "native"
KERNEL_DEVICE = "cuda" if NATIVE else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
needs_interpreter = pytest.mark.skipif(
    triton_status().mode != "interpreter", reason=f"not in the interpreter: {triton_status().reason}"
)
on_cpu = pytest.mark.skipif(NATIVE, reason="kernels are compiled for the GPU here")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The same cases once more on a GPU, for `pytest -m cuda`.
devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=on_cpu), pytest.param("cuda", marks=pytest.mark.cuda)]
)


def twins(plain: Callable, triton: Callable, *marks: pytest.MarkDecorator) -> list[Any]:
    """Values of a parameter: a kernel's plain form, and the kernel."""
    return [pytest.param(plain, id="plain"), pytest.param(triton, id="triton", marks=[needs_triton, *marks])]


class StandIn:
    """What stands in a kernel's place: its launches, with whatever grid, are calls of a function."""

    def __init__(self, launch: Callable[..., object]) -> None:
        self.launch = launch

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        return self.launch


def assert_host_does_not_wait(launch: Callable[[], object]) -> None:
    """Trap 3: no index is read back from the GPU, and nothing is copied to it from the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "DEBUG", False)
        launch()  # compiled by now
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a step, and the tensors that it makes at each replay."""
    step()  # compiled by now
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made
