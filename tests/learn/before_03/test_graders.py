"""The kernels of the reader's: what each loads and stores, and wrong ones refused by program and place."""

import pytest
import torch
from gate_tests import mistake_tests
from triton_marks import needs_triton

from labkit.kernels.triton_runtime import TritonStatus, tl, triton
from labkit.learn import BrokenContract
from labkit.learn.before_03 import graders
from labkit.learn.before_03.graders import (
    ADD_ONE,
    ADD_ONE_WHOLE,
    ROW_SUMS,
    Access,
    Launch,
    add_one_launch,
    row_sums_launch,
)
from labkit.paths import ROOT


def by_hand(kernel, n=4, **constants):
    """The accesses of a kernel on x = 0, 1, 2, ..., and `out` after it."""
    out = torch.zeros(n)
    return Launch("", 1, torch.arange(float(n)), constants, out).record(kernel, out), out.tolist()


@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 1, mask=offsets < n)


def test_each_program_of_x_plus_1_touches_its_own_numbers():
    assert add_one_launch(10, block=4).record(add_one) == [
        Access(kind, (program,), tensor, places)
        for program, places in enumerate([(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)])
        for kind, tensor in (("load", "x"), ("store", "out"))
    ]


def test_a_tile_of_a_matrix_leaves_out_what_lies_between_its_rows(shell):
    launch = row_sums_launch(5, 3, stride=4, block_rows=2, block_columns=4)
    loads, store, *_ = launch.record(shell.user_ns["my_row_sums"])
    assert loads == Access("load", (0,), "x", (0, 1, 2, 4, 5, 6))
    assert store == Access("store", (0,), "out", (0, 1))


@triton.jit
def beyond(x_ptr, out_ptr):
    offsets = tl.arange(0, 4) + 2
    tl.store(out_ptr + offsets, tl.load(x_ptr + (offsets - 4)))


def test_what_lies_beyond_a_tensor_is_noted_and_neither_read_nor_written():
    (load, store), out = by_hand(beyond)
    assert (load.places, store.places) == ((-2, -1, 0, 1), (2, 3, 4, 5))
    assert str(out) == "[0.0, 0.0, nan, nan]"


@triton.jit
def masked(x_ptr, out_ptr, other):
    offsets = tl.arange(0, 4)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < 2, other=other))


def test_a_load_whose_mask_is_off_gives_other():
    assert by_hand(masked, other=7.0)[1] == [0, 1, 7, 7]


def not_a_power_of_two(x_ptr, out_ptr):
    tl.arange(0, 3)


def an_unknown_name(x_ptr, out_ptr):
    tl.dot(x_ptr, out_ptr)


def no_pointer(x_ptr, out_ptr):
    tl.load(3)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (not_a_power_of_two, r"`tl.arange\(0, 3\)` has 3 numbers: a power of 2 is needed"),
        (an_unknown_name, "`tl.dot` is unknown here"),
        (no_pointer, "`tl.load` needs a pointer"),
    ],
)
def test_what_triton_would_refuse_is_refused_in_words(kernel, words):
    with pytest.raises(BrokenContract, match=words):
        by_hand(kernel)


@pytest.mark.parametrize("exercise", [ADD_ONE_WHOLE, ADD_ONE])
def test_a_right_kernel_is_told_so(exercise):
    assert exercise.grade(add_one).text == f"{exercise.name}: right. {len(exercise.launches)} launches."


@pytest.mark.cuda
def test_compiled_kernels_are_right(shell):
    for exercise, kernel in ((ADD_ONE, add_one), (ROW_SUMS, shell.user_ns["my_row_sums"])):
        assert exercise.grade(kernel).ok


# --- likely mistakes in the steps ---------------------------------------------------------------------------

_, MASKED, SUMS = range(3)
MISTAKES = [
    (MASKED, "tl.program_id(0) * BLOCK + ", "", "out[0] is stored 3 times, by the programs 0, 1, 2"),
    (MASKED, "+ offsets, mask=inside", "+ offsets", "program 2 loads x[10], x[11], but x ends with x[9]"),
    (MASKED, "offsets < n", "offsets <= n", "program 2 stores out[10], but out ends with out[9]"),
    (SUMS, "rows[:, None] * stride", "rows[:, None] * 0", "out[1] is 10, expected 26"),
    (SUMS, "* stride", "* num_columns", "6 apart"),
    (SUMS, "* stride + columns[None, :]", "+ columns[None, :] * stride", "out[0] is 28"),
    (SUMS, "columns[None, :] < num_columns", "columns[None, :] >= 0", "3 apart, and 2 programs of 2 rows,"),
    (SUMS, " & (columns", " and (columns", "Two masks are joined by `&`, with brackets around each."),
    (SUMS, ", other=0.0", "", "out[0] is nan, expected 6 (4 of 4 are wrong). try Where the mask is"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "before_03_how_a_gpu_runs_a_kernel.ipynb", MISTAKES
)


# --- Triton's own run --------------------------------------------------------------------------------------


@needs_triton
def test_what_triton_computes_counts_too(monkeypatch):
    monkeypatch.setattr(graders, "run", lambda kernel, launch: launch.expected * 0)
    assert "out[0] is 0, expected 1" in ADD_ONE.grade(add_one).text


def test_without_triton_the_record_alone_decides(monkeypatch):
    monkeypatch.setattr(graders, "triton_status", lambda: TritonStatus("off", "a test"))
    monkeypatch.delattr(graders, "run")
    assert ADD_ONE.grade(add_one.fn).ok


@needs_triton
def test_a_kernel_without_its_decorator_is_told_so():
    assert "a kernel has `@triton.jit` above its `def`" in ADD_ONE.grade(add_one.fn).text
