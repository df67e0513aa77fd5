"""A reader's kernel, compiled for a Hopper GPU: what it loads before the wait."""

import inspect
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

pytest.importorskip("triton")

from labkit.kernels.triton_runtime import triton_status
from labkit.learn.lesson_11.exercises import bytes_before_wait, check_machine_code, held_kernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason),
]


EARLY = "    if EARLY:\n        tl.extra.cuda.gdc_launch_dependents()\n        tl.extra.cuda.gdc_wait()\n"
WEIGHT = "    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :])\n"
X = "    x = tl.load(x_ptr + k)\n"
MISTAKES = [
    (WEIGHT + EARLY, EARLY + WEIGHT, r"a thread has loaded 0 bytes when it waits, expected 128"),
    (EARLY + X, X + EARLY, r"a thread has loaded 144 bytes when it waits, expected 128"),
    (EARLY, "", r"the machine code has no ACQBULK"),
    ("n[:, None] * K", "n[:, None]", r"a program makes its own outputs: output 1 is"),
    ("gdc_wait()", "gdc_wait_()", r"a kernel compiles: the compiler said .*gdc_wait_"),
]


def test_the_solution_is_right():
    report = check_machine_code(held_kernel)
    assert report.ok and "its 128 bytes of weights" in report.text, report


@pytest.mark.parametrize(("before", "after", "words"), MISTAKES)
def test_a_likely_mistake_is_refused_with_what_a_thread_has_loaded(before, after, words):
    source = inspect.getsource(getattr(held_kernel, "fn", held_kernel))
    assert source.count(before) == 1
    shell = InteractiveShell()
    shell.run_cell("from labkit.kernels.triton_runtime import tl, triton").raise_error()
    shell.run_cell(source.replace(before, after)).raise_error()
    report = check_machine_code(shell.user_ns["held_kernel"])
    assert not report.ok and re.search(words, report.text), report


def test_loads_before_the_wait_are_counted_with_their_width():
    text = "LDG.E.128 R4, a ;\nLDG.E R8, b ;\n@P0 LDG.E.U16 R9, c ;\n"
    assert bytes_before_wait(text + "ACQBULK ;\nLDG.E.64 R2, d ;\n") == 22
    assert bytes_before_wait(text) is None
