"""Lesson 11: what the compiler makes of a reader's kernel for a Hopper GPU, which need not be there."""

import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from labkit.kernels.triton_runtime import HAS_CUDA_GPU, early_launch, tl, triton, triton_status
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import proven

N, K, BLOCK_N, THREADS = 64, 1024, 8, 128  # outputs, inputs, the outputs of a program, and its threads
HEAD = "import triton\nimport triton.language as tl\n\n\n"
COMPILER = Path(__file__).with_name("compile_for_hopper.py")
LOAD = re.compile(r"\bLDG\.\S*?\.?(U8|S8|U16|S16|64|128)?\s")  # a load from memory, with its width
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


@triton.jit
def held_kernel(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    """A program of a product that holds its weights: the solution."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


class MachineCode(NamedTuple):
    """What a thread of a compiled program does."""

    waits: bool  # for the kernel before it
    early: list[int]  # bytes of each load before the wait
    spilled: int  # bytes that it keeps in memory, because it has no registers for them


def machine_code(kernel: Any, block_n: int = BLOCK_N) -> MachineCode:
    """Compile a kernel, given as its function or behind `triton.jit`, for programs of block_n outputs. Raises
    BrokenContract with the compiler's last word if it cannot."""
    function = getattr(kernel, "fn", kernel)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(HEAD + textwrap.dedent(inspect.getsource(function)), encoding="utf-8")
        command = [sys.executable, COMPILER, path, function.__name__, str(block_n), str(K)]
        ran = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if ran.returncode:
        said = ran.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise BrokenContract(f"a kernel compiles: the compiler said {said[0]}")
    return read_machine_code(ran.stdout)


def read_machine_code(text: str) -> MachineCode:
    """What is in the compiler's answer. ACQBULK is the wait."""
    used = dict(re.findall(r"\b(STACK|LOCAL):(\d+)", text))
    before, waits, _ = text.partition("ACQBULK")
    early = [BYTES.get(width, 4) for width in LOAD.findall(before)] if waits else []
    return MachineCode(bool(waits), early, int(used["STACK"]) + int(used["LOCAL"]))


def check_machine_code(kernel: Any) -> Report:
    """Run a kernel, and look into what the compiler makes of it. It never raises, except for an interrupt."""
    if triton_status().mode == "off":
        return Report(False, f"my_kernel: not checked. {triton_status().reason}.")
    share = BLOCK_N * K * 2 // THREADS
    told = f"A thread has its {share} bytes of weights on their way when it waits, in loads of 16 bytes."
    return proven("my_kernel", [lambda: makes_outputs(kernel), lambda: loads_early(kernel)], told)


def makes_outputs(kernel: Any) -> None:
    """Raise BrokenContract for a kernel that makes other values than the product, on this machine."""
    device = torch.device("cuda" if HAS_CUDA_GPU else "cpu")
    like = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=like).half().to(device) for shape in ((K,), (N, K)))
    out = torch.full((N,), torch.nan, device=device)
    kernel[(N // BLOCK_N,)](x, weight, out, K=K, BLOCK_N=BLOCK_N, num_warps=4, **early_launch(device))
    off = (out - weight.float() @ x.float()).abs()
    if not (off < 0.05).all():
        row = int((~(off < 0.05)).nonzero()[0])
        raise BrokenContract(
            f"a program makes its own outputs: output {row} is {out[row]:.3f}, expected "
            f"{(weight[row].float() @ x.float()).item():.3f}"
        )


def loads_early(kernel: Any) -> None:
    """Raise BrokenContract unless a compiled program loads its weights, and they alone, before the wait."""
    code, share = machine_code(kernel), BLOCK_N * K * 2 // THREADS
    if not code.waits:
        raise BrokenContract("a program waits for the kernel before it: the machine code has no ACQBULK.")
    loaded = sum(code.early)
    if loaded < share:
        raise BrokenContract(
            f"weights are loaded before the wait: a thread has loaded {loaded} bytes when it waits, expected "
            f"{share}, its share of {BLOCK_N} rows of {K} values of 16 bits."
        )
    if loaded > share:
        raise BrokenContract(
            f"x is loaded after the wait: a thread has loaded {loaded} bytes when it waits, and its share of "
            f"the weights is {share}. Before the wait x has the values of an earlier step."
        )
    if min(code.early) < 16:
        raise BrokenContract(
            f"a thread loads 16 bytes at a time: the narrowest load has {min(code.early)}. What one thread "
            "loads must lie side by side in memory."
        )


def held_table(sizes: Sequence[int]) -> pd.DataFrame:
    """What the compiler makes of `held_kernel`: a row per number of outputs of a program; none where there is
    no compiler."""
    if triton_status().mode == "off":
        return pd.DataFrame({"not compiled": [triton_status().reason]})
    rows = {}
    for block_n in sizes:
        code = machine_code(held_kernel, block_n)
        rows[block_n] = {
            "bytes a thread loads before the wait": f"{sum(code.early):,}",
            "bytes that it has no registers for": f"{code.spilled:,}",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("outputs of a program")
