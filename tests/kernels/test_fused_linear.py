"""What both fused linear kernels do alike, plain and in Triton, beside their definition in float64."""

from collections.abc import Callable

import pytest
import torch
from fused_linear_cases import (
    EACH,
    TRITON,
    arguments_of,
    assert_is_layer_norm_then_linear,
    assert_is_linear_and_residual,
    is_norm,
    make_case,
    tensors_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_marks import KERNEL_DEVICE, devices, needs_triton

from labkit.kernels.tiles import Tile


def assert_is_its_definition(function: Callable, case: dict, **options: object) -> None:
    check = assert_is_layer_norm_then_linear if is_norm(function) else assert_is_linear_and_residual
    check(function, case, **options)


@pytest.mark.parametrize("function", EACH)
def test_a_layer_may_be_without_bias(function: Callable):
    assert_is_its_definition(function, make_case() | {"bias": None})


@pytest.mark.parametrize("function", EACH)
def test_rows_may_be_part_of_wider_ones(function: Callable):
    case = make_case(M=18)
    for name in ("x", "residual"):
        wider = torch.full((18, 2 * case[name].shape[1]), torch.nan, device=KERNEL_DEVICE)
        wider[:, : case[name].shape[1]] = case[name]
        case[name] = wider[:, : case[name].shape[1]]
    assert_is_its_definition(function, case)


@pytest.mark.parametrize("function", EACH)
def test_arguments_stay_as_they_are(function: Callable):
    arguments, before = (flat(arguments_of(function, make_case())) for _ in range(2))
    function(**arguments_of(function, make_case()))
    for name, value in arguments.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name])), name


def flat(arguments: dict) -> dict:
    """Tuples taken apart, without what they have None of."""
    parts = [
        {f"{name}.{field}": part for field, part in value._asdict().items() if part is not None}
        if hasattr(value, "_asdict")
        else {name: value}
        for name, value in arguments.items()
    ]
    return {name: value for part in parts for name, value in part.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@pytest.mark.parametrize("value", [torch.nan, -torch.inf], ids=str)
@devices
@pytest.mark.parametrize("function", EACH)
def test_a_broken_row_spoils_no_other(function: Callable, device: str, value: float):
    case = make_case(M=18, device=device)
    expected = tensors_of(function(**arguments_of(function, case)))
    others = [m for m in range(18) if m != 1]
    x = case["x"].clone()
    x[1, 7] = value
    made = tensors_of(function(**arguments_of(function, case | {"x": x})))
    for tensor, wanted in zip(made, expected, strict=True):
        assert torch.equal(tensor[others], wanted[others])
        assert not tensor[1].isfinite().any()


@pytest.mark.parametrize("function", EACH)
def test_no_rows_make_no_result(function: Callable):
    out, *parts = tensors_of(function(**arguments_of(function, make_case(M=0))))
    assert out.shape == (0, 33)
    assert all(len(each) == 0 for each in parts)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("function", TRITON)
@settings(max_examples=20)
@given(data=st.data())
def test_it_is_its_definition_at_any_size_and_in_any_tile(function: Callable, data: st.DataObject):
    """With weights that are held and others, and rows one by one without tensor cores."""
    sizes = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 80)))
    split_k = 1 if is_norm(function) else data.draw(st.integers(1, 5))
    blocks, num_stages = st.sampled_from([16, 32, 64]), data.draw(st.sampled_from([1, 2]))
    tile = Tile(data.draw(blocks), data.draw(blocks), data.draw(blocks), split_k, 4, num_stages)
    if data.draw(st.booleans()):
        tile = tile._replace(block_m=1, block_n=data.draw(st.sampled_from([4, 8])))
    options = {"width": data.draw(st.integers(1, 90))} if is_norm(function) else {}
    tile = data.draw(st.sampled_from([None, tile]))
    assert_is_its_definition(function, make_case(*sizes), tile=tile, **options)
