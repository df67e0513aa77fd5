"""A reader's kernel, compiled for a Hopper GPU: what it loads before the wait."""

import re

import pytest

pytest.importorskip("triton")

from labkit.kernels.triton_runtime import tl, triton, triton_status
from labkit.learn.lesson_11.machine_code import check_machine_code, held_kernel, held_table, read_machine_code

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason),
]


@triton.jit
def loads_late(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


@triton.jit
def reads_x_early(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    x = tl.load(x_ptr + k)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


@triton.jit
def never_waits(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


@triton.jit
def loads_narrow(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = (tl.arange(0, K) * 5) % K
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    if EARLY:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


@triton.jit
def forgets_k(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    weight = tl.load(weight_ptr + n[:, None] + k[None, :])
    if EARLY:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


@triton.jit
def has_a_typo(x_ptr, weight_ptr, out_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, K)
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])
    if EARLY:
        tl.extra.cuda.gdc_wait_()
    x = tl.load(x_ptr + k)
    tl.store(out_ptr + n, tl.sum(weight.to(tl.float32) * x[None, :].to(tl.float32), axis=1))


WRONG = {
    "loads_late": r"a thread has loaded 0 bytes when it waits, expected 128",
    "reads_x_early": r"x is loaded after the wait: a thread has loaded 144 bytes .* weights is 128",
    "never_waits": r"the machine code has no ACQBULK",
    "loads_narrow": r"16 bytes at a time: the narrowest load has 2",
    "forgets_k": r"a program makes its own outputs: output 1 is",
    "has_a_typo": r"a kernel compiles: the compiler said .*gdc_wait_",
}


def test_the_solution_is_right():
    report = check_machine_code(held_kernel)
    assert report.ok and "its 128 bytes of weights" in report.text, report


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refused_with_what_a_thread_has_loaded(name):
    report = check_machine_code(globals()[name])
    assert not report.ok and re.search(WRONG[name], report.text), report


def test_with_too_many_outputs_a_thread_has_no_registers_for_its_weights():
    table = held_table((8, 128))
    early, spilled = table.T.values
    assert list(early) == ["128", "2,048"]
    assert spilled[0] == "0" and int(spilled[1].replace(",", "")) > 1000


def test_loads_before_the_wait_are_counted_with_their_width():
    text = "REG:40 STACK:8 SHARED:0 LOCAL:4\nLDG.E.128 R4, a ;\nLDG.E R8, b ;\n@P0 LDG.E.U16 R9, c ;\n"
    code = read_machine_code(text + "ACQBULK ;\nLDG.E.64 R2, d ;\n")
    assert code == (True, [16, 4, 2], 12)
    assert read_machine_code(text) == (False, [], 12)
