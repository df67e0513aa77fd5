"""Lesson 11: the exercises, and what a compiler makes of the kernel of the second."""

import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import torch

from labkit.kernels.triton_runtime import HAS_CUDA_GPU, early_launch, tl, triton, triton_status
from labkit.learn.exercise import BrokenContract, Exercise
from labkit.learn.gates import Report
from labkit.learn.gates.gate import proven


def read_too_early(events: Sequence[tuple]) -> list[tuple[int, str]]:
    """The launches, by number, that read a tensor which they do not wait for, and the tensor."""
    seen: dict[str, set[int]] = {}
    maker: dict[str, int] = {}
    wrong: list[tuple[int, str]] = []
    number = 0
    for what, stream, *rest in events:
        known = seen.setdefault(stream, set())
        if what == "wait":
            known |= seen.get(rest[0], set())
            continue
        reads, writes = rest
        wrong += [(number, name) for name in reads if name in maker and maker[name] not in known]
        known.add(number)
        maker |= dict.fromkeys(writes, number)
        number += 1
    return wrong


def draw_streams(rng: Random) -> dict[str, object]:
    """Draw arguments of `read_too_early`: launches and waits of up to three streams."""
    streams, events, names = ["main", "side", "third"][: rng.randint(2, 3)], [], "abcd"
    for _ in range(rng.randint(2, 14)):
        stream, other = rng.sample(streams, 2)
        if rng.random() < 0.35:
            events.append(("wait", stream, other))
        else:
            reads = rng.sample(names, rng.randint(0, 2))
            events.append(("launch", stream, reads, [rng.choice(names)]))
    return {"events": events}


READ_TOO_EARLY = Exercise(
    solution=read_too_early,
    draw=draw_streams,
    contract="A launch waits for everything before it in its own stream, and for everything that its "
    "stream has waited for so far, directly or not. It reads a tensor too early if the launch "
    "that last wrote it is not among those.",
)

# --- a kernel that holds its weights, compiled for a Hopper GPU, which need not be there -----------------

N, K, BLOCK_N, THREADS = 64, 1024, 8, 128  # outputs, inputs, the outputs of a program, and its threads
SHARE = BLOCK_N * K * 2 // THREADS  # bytes of a thread's weights
LOAD = re.compile(r"\bLDG\.\S*?\.?(U8|S8|U16|S16|64|128)?\s")  # a load from memory, with its width
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


def print_machine_code(kernel: Any, inputs: int, block_n: int) -> None:
    """Print what a Hopper GPU, which need not be there, would run of a kernel.

    In a process of its own, which imports nothing of labkit: where there is no GPU, labkit turns Triton's
    interpreter on, and a kernel of the interpreter's cannot be compiled.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {"x_ptr": "*fp16", "weight_ptr": "*fp16", "out_ptr": "*fp32"}
    values = {"K": inputs, "BLOCK_N": block_n, "EARLY": True}
    source = ASTSource(
        kernel,
        {name: pointers.get(name, "constexpr") for name in kernel.arg_names},
        {name: value for name, value in values.items() if name in kernel.arg_names},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in pointers},
    )
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["sass"])


def machine_code(kernel: Any) -> str:
    """What a Hopper GPU would run of a kernel, given as its function or behind `triton.jit`. Raises
    BrokenContract with the compiler's last word if it cannot be compiled."""
    function = getattr(kernel, "fn", kernel)
    sources = [dedent(inspect.getsource(each)) for each in (function, print_machine_code)]
    call = f"print_machine_code({function.__name__}, {K}, {BLOCK_N})\n"
    imports = "from typing import Any\n\nimport triton\nimport triton.language as tl\n"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text("\n\n".join((imports, *sources, call)), encoding="utf-8")
        ran = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment)
    if ran.returncode:
        said = ran.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise BrokenContract(f"a kernel compiles: the compiler said {said[0]}")
    return ran.stdout


def bytes_before_wait(code: str) -> int | None:
    """What a thread loads before it waits for the kernel before it (ACQBULK); None if it never waits."""
    before, waits, _ = code.partition("ACQBULK")
    return sum(BYTES.get(width, 4) for width in LOAD.findall(before)) if waits else None


def check_machine_code(kernel: Any) -> Report:
    """Run a kernel, and look into what the compiler makes of it. It never raises, except for an interrupt."""
    if triton_status().mode == "off":
        return Report(False, f"my_kernel: not checked. {triton_status().reason}.")
    told = f"A thread has its {SHARE} bytes of weights on their way when it waits."
    return proven("my_kernel", [lambda: makes_outputs(kernel), lambda: loads_early(kernel)], told)


def makes_outputs(kernel: Any) -> None:
    """Raise BrokenContract for a kernel that makes other values than the product, on this machine."""
    device = torch.device("cuda" if HAS_CUDA_GPU else "cpu")
    like = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=like).half().to(device) for shape in ((K,), (N, K)))
    out = torch.full((N,), torch.nan, device=device)
    kernel[(N // BLOCK_N,)](x, weight, out, K=K, BLOCK_N=BLOCK_N, num_warps=4, **early_launch(device))
    expected = weight.float() @ x.float()
    for row in ((out - expected).abs() < 0.05).logical_not().nonzero()[:, 0].tolist():
        raise BrokenContract(
            f"a program makes its own outputs: output {row} is {out[row]:.3f}, expected {expected[row]:.3f}"
        )


def loads_early(kernel: Any) -> None:
    """Raise BrokenContract unless a compiled program loads its weights, and they alone, before the wait."""
    loaded = bytes_before_wait(machine_code(kernel))
    if loaded is None:
        raise BrokenContract("a program waits for the kernel before it: the machine code has no ACQBULK.")
    if loaded != SHARE:
        raise BrokenContract(
            f"weights are loaded before the wait: a thread has loaded {loaded} bytes when it waits, expected "
            f"{SHARE}, its share of {BLOCK_N} rows of {K} values of 16 bits."
        )
