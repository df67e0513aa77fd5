"""The kernels of the reader's: wrong ones are refused by program and place, right ones in any clothes."""

import sys

import pytest
from triton_marks import needs_triton

from labkit.kernels.triton_runtime import TritonStatus, tl, triton
from labkit.learn import not_attempted
from labkit.learn.before_03 import graders, kernels
from labkit.learn.before_03.graders import ADD_ONE, ADD_ONE_WHOLE, ROW_MAXES, ROW_SUMS, add_one_launch, run

RIGHT = [
    (ADD_ONE_WHOLE, kernels.add_one),
    (ADD_ONE, kernels.add_one),
    (ROW_SUMS, kernels.row_sums),
    (ROW_MAXES, kernels.row_maxes),
]


@pytest.mark.parametrize(("exercise", "kernel"), RIGHT)
def test_the_packages_kernel_is_right(exercise, kernel):
    assert exercise.grade(kernel) == f"{exercise.name}: right, all {len(exercise.launches)} launches."


@needs_triton
def test_triton_itself_computes_the_same():
    for exercise, kernel in RIGHT:
        for launch in exercise.launches:
            assert run(kernel, launch).tolist() == launch.expected.tolist()


@pytest.mark.cuda
def test_compiled_kernels_are_right():
    for exercise, kernel in RIGHT:
        assert ": right" in exercise.grade(kernel)


# --- x + 1 -------------------------------------------------------------------------------------------------


@triton.jit
def skeleton(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@triton.jit
def programs_n_apart(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * n + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@triton.jit
def no_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@triton.jit
def mask_on_the_store_alone(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + 1, mask=offsets < n)


@triton.jit
def mask_with_the_end(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets <= n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + 1, mask=inside)


@triton.jit
def mask_too_narrow(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n - 1
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + 1, mask=inside)


@triton.jit
def steps_by_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 1, mask=offsets < n)


@triton.jit
def plus_two(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 2, mask=offsets < n)


@triton.jit
def endless(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = 0
    while i < 1:
        i *= 2


@triton.jit
def leaves(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    sys.exit()


WRONG = {
    "the skeleton": (skeleton, "out[0] is stored 3 times, by the programs 0, 1, 2"),
    "programs too far apart": (programs_n_apart, "None of the program's numbers is inside: check where"),
    "no mask": (no_mask, "program 2 stores out[10], out[11], but out ends with out[9]"),
    "a mask on the store alone": (
        mask_on_the_store_alone,
        "program 2 loads x[10], x[11], but x ends with x[9]",
    ),
    "a mask with the end": (mask_with_the_end, "program 2 stores out[10], but out ends with out[9]"),
    "a mask too narrow": (mask_too_narrow, "no program stores out[11]."),
    "steps by one": (steps_by_one, "out[1] is stored 2 times, by the programs 0, 1"),
    "plus two": (plus_two, "out[0] is 2, expected 1 (12 of 12 are wrong)"),
    "leaves": (leaves, "raised SystemExit"),
    "endless": (endless, "a program does not end"),
    "no kernel": (None, "expected a kernel, a function with `@triton.jit`, not None"),
    "not attempted": (lambda *_: not_attempted(), "add_one: not attempted yet."),
}


@pytest.mark.parametrize(("kernel", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_refused_in_words_of_its_own(kernel, words):
    verdict = ADD_ONE.grade(kernel)
    assert words in verdict and verdict.startswith("add_one: ") and "right" not in verdict


def test_without_a_mask_whole_blocks_are_right():
    assert ADD_ONE_WHOLE.grade(no_mask) == "add_one: right, all 4 launches."


# --- rows --------------------------------------------------------------------------------------------------


def rows_kernel(places, inside, other=0.0):
    """A kernel of row sums, on plain Python, with these places and this mask."""

    def kernel(x_ptr, out_ptr, num_rows, num_columns, stride, BLOCK_ROWS, BLOCK_COLUMNS):
        rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        columns = tl.arange(0, BLOCK_COLUMNS)
        at = places(rows[:, None], columns[None, :], stride, num_columns)
        on = inside(rows[:, None], columns[None, :], num_rows, num_columns)
        x = tl.load(x_ptr + at, mask=on, other=other)
        tl.store(out_ptr + rows, tl.sum(x, axis=1), mask=rows < num_rows)

    return kernel


def right_places(r, c, stride, columns):
    return r * stride + c


def right_mask(r, c, rows, columns):
    return (r < rows) & (c < columns)


WRONG_ROWS = {
    "the first row for all": (
        lambda r, c, stride, columns: 0 * r + c,
        right_mask,
        "out[1] is 10, expected 26",
    ),
    "rows without a stride": (lambda r, c, stride, columns: r * columns + c, right_mask, "6 apart"),
    "rows and columns exchanged": (lambda r, c, stride, columns: c * stride + r, right_mask, "out[0] is 28"),
    "no mask for rows": (
        right_places,
        lambda r, c, rows, columns: (r >= 0) & (c < columns),
        "program 2 loads",
    ),
    "no mask for columns": (
        right_places,
        lambda r, c, rows, columns: (r < rows) & (c >= 0),
        "With 4 rows of 3 numbers, 3 apart, and 2 programs of 2 rows, out[0] is 10, expected 6",
    ),
    "and in place of &": (
        right_places,
        lambda r, c, rows, columns: r < rows and c < columns,
        "Two masks are joined by `&`, with brackets around each.",
    ),
    "no brackets": (
        right_places,
        lambda r, c, rows, columns: r < rows & c < columns,
        "Two masks are joined by `&`, with brackets around each.",
    ),
}


@pytest.fixture
def no_triton(monkeypatch):
    """The record alone decides."""
    monkeypatch.setattr(graders, "triton_status", lambda: TritonStatus("off", "a test"))
    monkeypatch.delattr(graders, "run")


@pytest.mark.parametrize(("places", "inside", "words"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_wrong_rows_are_refused(places, inside, words, no_triton):
    assert words in ROW_SUMS.grade(rows_kernel(places, inside))


def test_a_mask_without_other_leaves_anything_there(no_triton):
    words = "out[0] is nan, expected 6 (4 of 4 are wrong). Where the mask is off, `tl.load` gives anything"
    assert words in ROW_SUMS.grade(rows_kernel(right_places, right_mask, other=float("nan")))


def test_the_largest_of_negative_numbers_is_not_0():
    @triton.jit
    def with_zero(
        x_ptr, out_ptr, num_rows, num_columns, stride, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
    ):
        rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        columns = tl.arange(0, BLOCK_COLUMNS)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        x = tl.load(x_ptr + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
        tl.store(out_ptr + rows, tl.max(x, axis=1), mask=rows < num_rows)

    assert "out[0] is 0, expected -1" in ROW_MAXES.grade(with_zero)


# --- Triton's own run --------------------------------------------------------------------------------------


@needs_triton
def test_what_triton_computes_counts_too(monkeypatch):
    monkeypatch.setattr(graders, "run", lambda kernel, launch: launch.expected * 0)
    assert "out[0] is 0, expected 1" in ADD_ONE.grade(kernels.add_one)


@needs_triton
def test_a_store_around_out_is_noticed_in_tritons_run():
    with pytest.raises(graders.BrokenContract, match="Triton's run stored outside of `out`"):
        run(no_mask, add_one_launch(10, block=4))


def test_without_triton_the_record_alone_decides(no_triton):
    assert ADD_ONE.grade(kernels.add_one) == "add_one: right, all 6 launches."
    assert ROW_SUMS.grade(rows_kernel(right_places, right_mask)) == "row_sums: right, all 5 launches."


@needs_triton
def test_a_kernel_without_its_decorator_is_told_so():
    assert "a kernel has `@triton.jit` above its `def`" in ROW_SUMS.grade(
        rows_kernel(right_places, right_mask)
    )
