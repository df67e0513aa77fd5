"""A chunk through a decode step's kernels: the logits of the network's own forward, with its weights."""

from dataclasses import replace

import pytest
import torch
from helpers import make_engine, small_model
from triton_marks import needs_triton

from labkit import LADDER, InferenceEngine
from labkit.engine import InferenceSession
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.request import Request
from labkit.engine.sampling import SamplingParams
from labkit.engine.scheduler import Joining
from labkit.engine.step import fused_chunk
from labkit.engine.step.chunk import ChunkStep
from labkit.engine.step.fused import FusedLayer
from labkit.engine.step.fused_chunk import MOST_ROWS, FusedChunkStep, with_biases_so_far, with_rounded_biases
from labkit.engine.step.graphed_chunk import GraphedChunkStep
from labkit.kernels import NormLinear
from labkit.kernels.library_linear import linear_into_residual
from labkit.model import LinearWeights, small

PACKED = LADDER["13"].options
PROMPTS = [(1, 2, 3, 4, 5, 6), (7, 8), (9, 10, 11, 12, 13)]


def logits_of(
    engine: InferenceEngine, kind: type[ChunkStep], prompts=PROMPTS
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [P, V] of a chunk of these prompts, computed as by `kind` in blocks of their own; and what is in
    these."""
    resident = engine.prefill.chunk_step
    launched = resident.device_step
    step = launched.chunk_step if isinstance(launched, GraphedChunkStep) else launched
    assert type(step) is FusedChunkStep
    joining = {}
    for i, prompt in enumerate(prompts):
        session = InferenceSession(engine.kv_manager)
        session.reserve_prompt(len(prompt))
        request = Request(i, prompt, SamplingParams())
        joining[request] = Joining(session, prompt, None)
    chunk = PackedChunk(prompts, [0] * len(prompts), 10**6)
    numbers = resident.layout.pack(chunk, joining, len(chunk.token_ids) + 3).to(engine.device)
    with torch.inference_mode():
        logits = kind.__call__(step, numbers)[: len(prompts)].clone()
        kept = [torch.stack(each.session.dense_kv()) for each in joining.values()]
    for each in joining.values():
        each.session.release()
    return logits, kept


def assert_as_the_network(engine, prompts=PROMPTS, apart=1e-5):
    """apart: of the largest number, how far they may be."""
    made, kept = logits_of(engine, FusedChunkStep, prompts)
    expected, expected_kept = logits_of(engine, ChunkStep, prompts)
    for ours, wanted in [(made, expected), *zip(kept, expected_kept, strict=True)]:
        assert wanted.abs().max() > 0
        torch.testing.assert_close(ours, wanted, rtol=0, atol=apart * wanted.abs().max().item())


def test_a_chunk_has_the_logits_keys_and_values_of_the_networks_forward():
    assert_as_the_network(make_engine(options=PACKED))


def test_more_rows_than_tiles_are_measured_for_go_through_the_librarys_products(monkeypatch):
    engine = make_engine(options=PACKED)
    many = engine.prefill.chunk_step.device_step.many
    products, product = [], many.kernels.norm_linear

    def noting(x, *others, **options):
        products.append(len(x))
        return product(x, *others, **options)

    many.kernels = many.kernels._replace(norm_linear=noting)
    monkeypatch.setattr(fused_chunk, "MOST_ROWS", 16)
    assert_as_the_network(engine)  # 13 rows and 3 pads
    assert products == []
    monkeypatch.setattr(fused_chunk, "MOST_ROWS", 15)
    assert_as_the_network(engine)
    num_prompts = engine.prefill.chunk_step.max_prompts
    assert products == [16] * (2 * engine.model.config.num_layers - 1) + [num_prompts]  # the last MLP
    assert MOST_ROWS == 256


@pytest.mark.parametrize(
    "config", [small.SMALL_LLAMA, small.SMALL_QWEN3], ids=lambda config: config.model_type
)
@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float32),
        pytest.param("cuda", torch.float32, marks=pytest.mark.cuda),
        pytest.param("cuda", torch.float16, marks=pytest.mark.cuda),
    ],
)
def test_the_last_rows_of_modern_models_have_the_logits_of_the_networks_forward(
    monkeypatch, config, device, dtype
):
    """With grouped heads, rotation and a gate, through the library's products."""
    monkeypatch.setattr(fused_chunk, "MOST_ROWS", 8)
    engine = InferenceEngine(small.small_model(config=config), PACKED, device=device, dtype=dtype)
    assert_as_the_network(engine, apart=1e-5 if dtype == torch.float32 else 1e-2)


def test_its_weights_are_those_of_the_decode_step():
    engine = make_engine(options=PACKED)
    step, decoding = engine.prefill.chunk_step.device_step, engine.decode_step.device_step
    assert step.few.layers is decoding.layers
    for own, lent in zip(step.many.layers, decoding.layers, strict=True):
        assert all(a.weight is b.weight for a, b in zip(own.products, lent.products, strict=True))
    assert step.many.kernels.linear_residual.func is linear_into_residual
    assert step.few.head is step.many.head is decoding.head


def test_biases_of_the_librarys_products_have_the_weights_dtype():
    weight, bias = torch.zeros(8, 4, dtype=torch.bfloat16), torch.randn(8)
    norm_linear, linear = NormLinear(weight, None, bias, 1e-5), LinearWeights(weight, None)
    layer = with_rounded_biases(FusedLayer(norm_linear, linear, norm_linear._replace(bias=None), linear))
    assert layer.qkv.bias.equal(bias.bfloat16()) and layer.qkv.weight is weight
    assert layer.mlp_in.bias is None


def test_biases_are_summed_up_to_each_product():
    """Also where only some products have one."""
    empty = LinearWeights(torch.zeros(2, 2), None)
    plain = FusedLayer(empty, empty, empty, empty)
    has_bias = plain._replace(mlp_out=empty._replace(bias=torch.tensor([1.0, 2.0]).half()))
    layers = with_biases_so_far([plain, has_bias, has_bias])
    offsets = [product.bias for layer in layers for product in (layer.attention_out, layer.mlp_out)]
    assert offsets[:3] == [None] * 3
    assert [offset.tolist() for offset in offsets[3:]] == [[1, 2], [1, 2], [2, 4]]
    assert {offset.dtype for offset in offsets[3:]} == {torch.float32}


@pytest.mark.parametrize("changed", [{"latency": "exposed"}, {"launch": "eager"}])
def test_whatever_launches_the_decode_step_short_chunks_go_through_its_kernels(changed):
    assert_as_the_network(make_engine(options=replace(PACKED, **changed)))


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("most_rows", [15, MOST_ROWS])
@pytest.mark.parametrize("num_rows", [1, 13, 60, 130, 180])
def test_on_a_gpu_a_chunk_has_the_logits_keys_and_values_of_the_networks_forward(
    monkeypatch, dtype, num_rows, most_rows
):
    monkeypatch.setattr(fused_chunk, "MOST_ROWS", most_rows)
    engine = InferenceEngine(small_model(), PACKED, device="cuda", dtype=dtype)
    lengths = [num_rows // 3, num_rows // 2 - num_rows // 3, num_rows - num_rows // 2]
    longest = engine.model.config.max_positions
    prompts = [tuple(range(1, 1 + min(length, longest))) for length in lengths if length]
    assert_as_the_network(engine, prompts, apart=1e-5 if dtype == torch.float32 else 1e-2)
