"""A linear layer and the residual behind it: tiles shared by programs, their workspace, the statistics."""

import pytest
import torch
from fused_linear_cases import assert_is_linear_and_residual, make_case, residual_arguments
from triton_marks import KERNEL_DEVICE, StandIn, devices, needs_triton

from labkit.kernels import linear_residual, linear_residual_triton
from labkit.kernels.linear_residual import check_workspace, make_split_k_workspace
from labkit.kernels.tiles import Tile


@pytest.mark.slow
@needs_triton
@devices
@pytest.mark.parametrize("split_k", [1, 3, 4])
@pytest.mark.parametrize(
    "block_m, block_n, num_stages, dtype",
    [
        (64, 32, 2, torch.float32),
        (32, 16, 2, torch.bfloat16),
        (16, 16, 1, torch.float16),
        (1, 8, 1, torch.float32),
    ],
    ids=str,
)
def test_a_tile_may_be_shared(
    block_m: int, block_n: int, num_stages: int, split_k: int, device: str, dtype: torch.dtype
):
    """K is five blocks: the parts are not of one size, and of four, one is empty."""
    workspace = make_split_k_workspace(torch.device(device), num_partials=2**14, num_tiles=2**7)
    workspace.partials.fill_(torch.nan)
    case = make_case(min(17, block_m + 1), 40, 75, dtype, device)
    case["residual"][0] += 100  # from squares alone, nothing would be left of its variance
    tile = Tile(block_m, block_n, 16, split_k, 4, num_stages)
    for _ in range(2):
        statistics = assert_is_linear_and_residual(
            linear_residual_triton, case, tile=tile, workspace=workspace
        )
        assert statistics.width == block_n
        assert not workspace.counters.any()  # it can be launched again


@needs_triton
@devices
def test_parts_are_added_in_their_order(device: str):
    """1e8 and -1e8 first, then 1: in any other order the 1 is lost."""
    arguments = residual_arguments(make_case(1, 16, 48, device=device))
    x, weight, bias, residual = arguments.values()
    weight.zero_(), bias.zero_(), residual.zero_(), x.fill_(1)
    weight[:, 0], weight[:, 16], weight[:, 32] = 1e8, -1e8, 1
    out, statistics = linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 3, 4, 2))
    assert (out == 1).all()
    assert statistics.parts.tolist() == [[[1, 0]]]


@needs_triton
def test_counters_are_cleared_if_a_launch_is_interrupted(monkeypatch: pytest.MonkeyPatch):
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), num_partials=2**12, num_tiles=4)

    def interrupted(*args: object, **kwargs: object) -> None:
        workspace.counters[0] += 1
        raise KeyboardInterrupt

    case = make_case()
    options = {"tile": Tile(16, 16, 16, 2, 4, 2), "workspace": workspace}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(linear_residual, "_linear_residual_kernel", StandIn(interrupted))
        linear_residual_triton(**residual_arguments(case), **options)
    assert not workspace.counters.any()
    assert_is_linear_and_residual(linear_residual_triton, case, **options)


def test_more_partial_sums_than_offsets_reach_are_refused():
    tile, device = Tile(128, 128, 64, 16, 8, 4), torch.device(KERNEL_DEVICE)
    with pytest.raises(ValueError, match=r"needs 4294967296 partial sums, which offsets of 32 bits do not"):
        check_workspace(make_split_k_workspace(device, 1, 1), device, 2**14, tile)


@needs_triton
@pytest.mark.parametrize("sizes", [{"num_partials": 1000}, {"num_tiles": 5}], ids=["partials", "counters"])
def test_a_workspace_too_small_is_refused(sizes: dict):
    arguments = residual_arguments(make_case(M=17))
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), **sizes)
    with pytest.raises(ValueError, match=r"^workspace is too small: .* needs 3072 partials, 6 counters$"):
        linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2), workspace=workspace)
