"""The fused linear kernels on a GPU: at full size, in graphs, and many times in a row."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fused_linear_cases import (
    assert_is_layer_norm_then_linear,
    assert_is_linear_and_residual,
    fold,
    make_case,
    residual_arguments,
    tensors_of,
)
from torch import Tensor
from triton_marks import captured, dtypes

from labkit.kernels import linear_residual_triton, norm_linear_triton, ring_linear, tile_product
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.linear_residual import make_split_k_workspace
from labkit.kernels.ring_linear import has_ring_kernels
from labkit.kernels.tiles import NOTHING_MEASURED, ROWS, TILES, MeasuredTiles, Tile, tile_of

BATCHES = [1, 8, 64, 128, 256]


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("M", [*BATCHES, 17, 100])
@pytest.mark.parametrize("N, K", TILES, ids=str)
def test_on_a_gpu_it_is_its_definition_at_full_size(N: int, K: int, M: int, dtype: torch.dtype):
    case = make_case(M, N, K, dtype, "cuda")
    if N == 768:
        assert_is_linear_and_residual(linear_residual_triton, case)
    else:  # in the parts that the layer before leaves
        width = tile_of(M, 768, K).block_n
        assert_is_layer_norm_then_linear(norm_linear_triton, case, width, gelu=N == 3072)


@pytest.mark.cuda
@pytest.mark.parametrize("M", BATCHES)
@pytest.mark.parametrize("K", [768, 3072])
def test_on_a_gpu_the_same_arguments_give_the_same_bits(K: int, M: int):
    arguments = residual_arguments(make_case(M, 768, K, torch.float16, "cuda"))
    arguments["workspace"] = make_split_k_workspace(torch.device("cuda"))
    assert tile_of(M, 768, 3072).split_k > 1
    expected = tensors_of(linear_residual_triton(**arguments))
    for _ in range(200):
        assert all(map(torch.equal, tensors_of(linear_residual_triton(**arguments)), expected))
    assert not arguments["workspace"].counters.any()


class Layer:
    """The linear layers of a GPT-2 block and of the next one's beginning, with nothing between them: each
    kernel reads what the one before it has just written."""

    def __init__(self, M: int, dtype: torch.dtype, measured: MeasuredTiles = NOTHING_MEASURED) -> None:
        sizes = {"qkv": (2304, 768), "attn": (768, 768), "fc": (3072, 768), "proj": (768, 3072)}
        cases = {
            name: make_case(M, N, K, dtype, "cuda", seed) for seed, (name, (N, K)) in enumerate(sizes.items())
        }
        self.x = cases["qkv"]["x"]
        self.qkv, self.fc = fold(cases["qkv"]), fold(cases["fc"])
        self.attn, self.proj = ((cases[name]["weight"], cases[name]["bias"]) for name in ("attn", "proj"))
        workspace = make_split_k_workspace(torch.device("cuda"))
        self.counters = workspace.counters
        self.norm_linear = partial(norm_linear_triton, measured=measured)
        self.linear_residual = partial(linear_residual_triton, measured=measured, workspace=workspace)

    def __call__(self) -> list[Tensor]:
        """Everything that a kernel made, in order."""
        qkv = self.norm_linear(self.x, row_statistics(self.x, 768), self.qkv)
        x, first = self.linear_residual(qkv[:, :768], *self.attn, self.x)
        inner = self.norm_linear(x, first, self.fc, gelu=True)
        y, second = self.linear_residual(inner, *self.proj, x)
        last = self.norm_linear(y, second, self.qkv)
        return [qkv, x, first.parts, inner, y, second.parts, last]


RINGS = {
    (2304, 768): Tile(64, 32, 256, 1, 4, 3, ring=True),
    (768, 768): Tile(64, 16, 64, 1, 4, 12, ring=True),
    (3072, 768): Tile(64, 64, 64, 1, 4, 5, ring=True),
    (768, 3072): Tile(64, 16, 128, 2, 4, 10, ring=True),
}


def measured_for(kind: str) -> MeasuredTiles:
    """Rings, where a GPU has them, or nothing."""
    if kind == "rings" and not has_ring_kernels(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU")
    return {NK: dict.fromkeys(ROWS, tile) for NK, tile in RINGS.items()} if kind == "rings" else {}


kinds = pytest.mark.parametrize("kind", ["tiles by rule", "rings"])


@pytest.mark.cuda
@kinds
@dtypes
@pytest.mark.parametrize("M", BATCHES)
def test_on_a_gpu_a_graph_of_a_chain_replayed_gives_the_bits_of_the_chain(
    monkeypatch: pytest.MonkeyPatch, M: int, dtype: torch.dtype, kind: str
):
    """A kernel that begins before the one in front of it has ended reads nothing of it too early: not in a
    graph, not without, and the same as where every kernel waits for the whole of the one before."""
    layer = Layer(M, dtype, measured_for(kind))
    graph, replayed = captured(layer)
    like = torch.Generator("cuda").manual_seed(1)
    seen = set()
    for _ in range(50):
        layer.x.copy_(torch.randn(layer.x.shape, generator=like, device="cuda"))
        eager = layer()
        with monkeypatch.context() as patch:
            for module in (tile_product, ring_linear):
                patch.setattr(module, "early_launch", lambda device: {"EARLY": False})
            one_by_one = layer()
        for tensor in replayed:
            tensor.fill_(torch.nan)
        graph.replay()
        for made in (replayed, eager):
            assert all(map(torch.equal, made, one_by_one))
        seen.add(replayed[-1].float().sum().item())
    assert len(seen) == 50
    assert not layer.counters.any()


@pytest.mark.cuda
@kinds
@pytest.mark.parametrize("M", BATCHES)
def test_on_a_gpu_many_replays_in_a_row_race_with_nobody(M: int, kind: str):
    """Each begins on what the last one left, and nothing waits between them."""
    layer = Layer(M, torch.float16, measured_for(kind))

    def move_on() -> list[Tensor]:
        made = layer()
        layer.x.copy_(F.layer_norm(made[4].float(), (768,)))  # else numbers grow without end
        return made

    start = layer.x.clone()
    graph, _ = captured(move_on)
    layer.x.copy_(start)
    for _ in range(50):
        graph.replay()
    replayed = layer.x.clone()
    layer.x.copy_(start)
    for _ in range(50):
        move_on()
        torch.cuda.synchronize()
    assert torch.equal(replayed, layer.x)
    assert replayed.isfinite().all() and not torch.equal(replayed, start)
