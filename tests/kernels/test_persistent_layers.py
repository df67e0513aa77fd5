"""All layers in one kernel, and their plain form, against the definition in float64."""

from collections.abc import Callable

import pytest
import torch
from attention_append_cases import NOBODY
from persistent_cases import Case, assert_is_all_layers, copied, make_case
from refusals import assert_each_wrong_tensor_is_refused
from triton_marks import KERNEL_DEVICE, StandIn, needs_triton

from labkit.kernels import persistent_layers
from labkit.kernels.eight_bit import LIMITS
from labkit.kernels.persistent_layers import (
    LayerTable,
    decode_layers_persistent_triton,
    decode_layers_plain,
    make_barrier,
    num_splits,
)

pytestmark = pytest.mark.slow


def in_one_kernel(case: Case, splits: int | None = None) -> torch.Tensor:
    """The kernel; after it, its barrier can be used again."""
    barrier = make_barrier(case.x.device)
    out = decode_layers_persistent_triton(*case, barrier, splits=splits)
    assert barrier.tolist() == [0]
    return out


each_form = pytest.mark.parametrize(
    "decode_layers",
    [
        pytest.param(lambda case: decode_layers_plain(*case), id="plain"),
        pytest.param(in_one_kernel, id="triton", marks=needs_triton),
        pytest.param(lambda case: in_one_kernel(case, splits=4), id="split", marks=needs_triton),
    ],
)


def assert_decodes(decode_layers: Callable, before: Case, tolerance: float | None = None) -> None:
    after = copied(before)
    assert_is_all_layers(decode_layers(after), after, before, tolerance)


SMALL = {
    "before a boundary": {"length": 3},
    "at a boundary": {"length": 4},
    "past a boundary": {"length": 5},
    "no token before": {"length": 0},
    "a row that pads": {"length": NOBODY},
    "several pieces in a split": {"length": 530, "block_size": 16, "H": 1, "L": 1},
    "three layers, one table": {"length": 5, "L": 3, "num_tables": 1},
    "odd sizes": {"length": 11, "H": 3, "D": 5, "inner": 37, "block_size": 6},
    "several chunks": {"length": 3, "H": 4, "D": 80, "inner": 300, "L": 1},
    "float16": {"length": 9, "dtype": torch.float16, "bias": False},
    "bfloat16": {"length": 9, "dtype": torch.bfloat16},
}


BY_DAY = ("at a boundary", "a row that pads", "several pieces in a split", "odd sizes", "float16", "bfloat16")
small = [
    pytest.param(sizes, id=name, marks=() if name in BY_DAY else pytest.mark.nightly)
    for name, sizes in SMALL.items()
]


@each_form
@pytest.mark.parametrize("sizes", small)
def test_it_is_all_layers_and_each_token_is_in_its_place(decode_layers: Callable, sizes: dict):
    assert_decodes(decode_layers, make_case(**sizes))


@each_form
@pytest.mark.parametrize("kept", LIMITS, ids=str)
def test_over_a_cache_in_eight_bits(decode_layers: Callable, kept: torch.dtype):
    """Near: Triton's interpreter cuts off where a scale should be rounded, so a value may be a step off."""
    before = make_case(9, kept=kept)
    assert_decodes(decode_layers, before, 0.01 if kept == torch.uint8 else 0.1)


@each_form
def test_a_row_far_from_zero_is_normalized(decode_layers: Callable):
    """The variance is of distances from the mean: from squares alone, nothing would be left of it."""
    before = make_case(5)
    before.x.add_(100)
    assert_decodes(decode_layers, before, tolerance=1e-4)


@each_form
def test_weights_that_do_not_begin_at_a_multiple_of_16_bytes(decode_layers: Callable):
    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view_as(tensor)

    before = make_case(5)
    layers = [
        layer._replace(mlp_out=type(layer.mlp_out)(*map(shifted, layer.mlp_out)))
        for layer in before.table.layers
    ]
    before = before._replace(table=LayerTable(layers))
    assert_decodes(decode_layers, before)
    assert not (before.table.addresses % 16).any()


@needs_triton
def test_a_launch_that_stops_half_way_leaves_the_barrier_for_the_next(monkeypatch: pytest.MonkeyPatch):
    def stopped(*arguments: object, **options: object) -> None:
        barrier.fill_(7)  # some have arrived
        raise KeyboardInterrupt

    case, barrier = make_case(3), make_barrier(torch.device(KERNEL_DEVICE))
    monkeypatch.setattr(persistent_layers, "_decode_layers_kernel", StandIn(stopped))
    with pytest.raises(KeyboardInterrupt):
        decode_layers_persistent_triton(*case, barrier)
    assert barrier.tolist() == [0]


@pytest.mark.parametrize(
    "num_heads, programs, splits", [(12, 132, 4), (24, 132, 4), (48, 132, 2), (96, 132, 1), (2, 1, 1)]
)
def test_a_heads_tokens_are_split_while_there_are_programs(num_heads: int, programs: int, splits: int):
    assert num_splits(num_heads, programs) == splits


# --- refusals --------------------------------------------------------------------------------------


@each_form
def test_arguments_that_do_not_fit_are_refused_by_name(decode_layers: Callable):
    case = make_case(3)
    other_heads = torch.zeros(2, 4, 4, 4, 8, device=KERNEL_DEVICE)
    with pytest.raises(ValueError, match="k_cache has 4 heads of 8, but x has 16 columns"):
        decode_layers(case._replace(k_cache=other_heads, v_cache=other_heads))
    free = ("block_tables rows", "block_tables width")
    assert_each_wrong_tensor_is_refused(lambda **parts: decode_layers(Case(**parts)), case._asdict(), free)


def test_a_weight_that_is_not_contiguous_is_refused_by_name():
    first, second = make_case(1).table.layers
    wrong = second.attention_out._replace(weight=second.attention_out.weight.T)
    with pytest.raises(ValueError, match=r"layers\[1\].attention_out.weight has strides"):
        LayerTable([first, second._replace(attention_out=wrong)])


@needs_triton
def test_other_splits_and_barriers_are_refused():
    case = make_case(1)
    for splits in (0, 3):
        with pytest.raises(ValueError, match=f"splits is {splits}, expected a power of 2"):
            in_one_kernel(case, splits=splits)
    with pytest.raises(ValueError, match=r"barrier is torch.float32"):
        decode_layers_persistent_triton(*case, torch.zeros(1, device=KERNEL_DEVICE))
