"""A kernel's programs, run by hand: what each of them loads and stores."""

import pytest
import torch

from labkit.kernels.triton_runtime import tl, triton
from labkit.learn import BrokenContract
from labkit.learn.before_03 import kernels
from labkit.learn.before_03.graders import Access, add_one_launch, record, row_sums_launch


def by_hand(kernel, grid=(1,), n=4, **constants):
    """The accesses of a kernel on x = 0, 1, 2, ..., and `out` after it."""
    tensors = {"x": torch.arange(float(n)), "out": torch.zeros(n)}
    return record(kernel, grid, tensors, constants), tensors["out"].tolist()


def test_each_program_of_x_plus_1_touches_its_own_numbers():
    assert add_one_launch(10, block=4).record(kernels.add_one) == [
        Access(kind, (program,), tensor, places)
        for program, places in enumerate([(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)])
        for kind, tensor in (("load", "x"), ("store", "out"))
    ]


def test_a_tile_of_a_matrix_leaves_out_what_lies_between_its_rows():
    loads, store, *_ = row_sums_launch(5, 3, stride=4, block_rows=2, block_columns=4).record(kernels.row_sums)
    assert loads == Access("load", (0,), "x", (0, 1, 2, 4, 5, 6))
    assert store == Access("store", (0,), "out", (0, 1))


@triton.jit
def beyond(x_ptr, out_ptr):
    offsets = tl.arange(0, 4) + 2
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets - 4))


def test_what_lies_beyond_a_tensor_is_noted_and_neither_read_nor_written():
    (load, store), out = by_hand(beyond)
    assert (load.places, store.places) == ((-2, -1, 0, 1), (2, 3, 4, 5))
    assert str(out) == "[0.0, 0.0, nan, nan]"


@triton.jit
def masked(x_ptr, out_ptr, other):
    offsets = tl.arange(0, 4)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < 2, other=other))


def test_a_load_whose_mask_is_off_gives_other_or_nothing():
    assert by_hand(masked, other=7.0)[1] == [0, 1, 7, 7]
    unsaid, out = by_hand(lambda x_ptr, out_ptr: out_ptr and None)  # a plain function is a kernel, too
    assert (unsaid, out) == ([], [0, 0, 0, 0])


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


def test_programs_of_a_grid_with_two_axes_have_two_numbers():
    def two_axes(x_ptr, out_ptr):
        tl.store(out_ptr + tl.program_id(0) * 2 + tl.program_id(1), 1.0)

    accesses, out = by_hand(two_axes, grid=(2, 2))
    assert [access.program for access in accesses] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert out == [1, 1, 1, 1]
