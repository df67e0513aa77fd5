"""A fused step against the model it stands for: the same logits, the same tokens, and no padded one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event
from types import SimpleNamespace

import helpers
import pytest
import torch
from helpers import ByteTokenizer, tokens_of
from resident_helpers import TEXTS
from torch import Tensor
from triton_marks import needs_interpreter

from labkit import LADDER, InferenceEngine, LanguageModel, SamplingParams
from labkit.engine.step import attention as step_attention
from labkit.engine.step import fused
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import PLAIN, TRITON, VOCABULARY_MULTIPLE, FusedDeviceStep, FusedLayer
from labkit.engine.step.graphed import GraphedStep
from labkit.kernels import checks, linear_residual_triton, norm_linear_triton, paged_attention_append_plain
from labkit.kernels.library_linear import linear_residual_library, norm_linear_library
from labkit.kernels.tiles import Tile, head_tile
from labkit.ladder import FUSED_AND_SPLIT
from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network
from labkit.model.ranks import ALONE

pytestmark = pytest.mark.slow

RUNG_00 = LADDER["00"].options
EAGER = replace(FUSED_AND_SPLIT, launch="eager")
PLAIN_OPTIONS = replace(EAGER, attention="plain")
TRITON_OPTIONS = replace(FUSED_AND_SPLIT, attention="triton")
each_form = pytest.mark.parametrize(
    "options", [PLAIN_OPTIONS, pytest.param(TRITON_OPTIONS, marks=needs_interpreter)], ids=["plain", "triton"]
)

CONFIGS = {  # vocabularies beside, at and beyond a multiple of 64
    "2 layers": GPT2Config(
        vocab_size=100, n_positions=64, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=False
    ),
    "odd sizes": GPT2Config(
        vocab_size=65, n_positions=33, n_embd=15, n_layer=2, n_head=3, n_inner=37, layer_norm_epsilon=1e-3
    ),
    "1 layer, no padding": GPT2Config(vocab_size=128, n_positions=40, n_embd=24, n_layer=1, n_head=1),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5,), (1, 2, 3, 4, 5)]


def random_model(config: GPT2Config) -> LanguageModel:
    """Norms and biases are random, too: as they come, a norm that is left out would not be seen."""
    gpt2 = random_network(config, seed=0)
    like = torch.Generator().manual_seed(1)
    for parameter in gpt2.parameters():
        if parameter.dim() == 2:
            parameter.mul_(20)
        else:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=like))
    return LanguageModel("random:fused", gpt2, ByteTokenizer())


def below_zero(model: LanguageModel) -> LanguageModel:
    """Every logit is far below the 0 of a row of zeros."""
    gpt2 = model.network
    gpt2.ln_f.weight.mul_(0.1)
    gpt2.ln_f.bias.copy_(torch.full_like(gpt2.ln_f.bias, 5.0))
    gpt2.lm_head.weight.copy_(-gpt2.lm_head.weight.abs() - 1)
    return model


def make_engine(model: LanguageModel, options, device: str = "cpu", dtype=torch.float32, **scheduler: int):
    sizes = {"max_batch_size": 4, "prefill_max_batch_size": 1, "prefix_cache": False, **scheduler}
    return helpers.make_engine(model, options, device=device, dtype=dtype, **sizes)


def compare_logits(engine: InferenceEngine) -> list[tuple[Tensor, Tensor]]:
    """The logits of every greedy step from now on, beside those of `GPT2.decode_one_token` with plain
    attention for the same slots."""
    step: FusedDeviceStep = engine.decode_step.device_step
    assert type(step) is FusedDeviceStep
    manager, greedy_advance, compared = engine.kv_manager, step.kernels.greedy_advance, []

    def spy(logits: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor) -> Tensor:
        written = manager.k_cache.clone(), manager.v_cache.clone()
        attention = AttendAndWrite(manager, paged_attention_append_plain)
        attention.begin(step.slots, slot_mapping, int(context_lens.max()))
        positions = context_lens[slot_mapping].clamp(min=0).long()
        expected = step.network.decode_one_token(last_token_ids[slot_mapping], positions, attention)
        manager.k_cache.copy_(written[0])
        manager.v_cache.copy_(written[1])
        compared.append((logits.clone(), expected))
        return greedy_advance(logits, slot_mapping, last_token_ids, context_lens)

    step.kernels = step.kernels._replace(greedy_advance=spy)
    return compared


def assert_logits_are_close(compared: list[tuple[Tensor, Tensor]], bound: float) -> None:
    """And a token that differs is a near tie."""
    assert compared
    for logits, expected in compared:
        assert logits.shape == expected.shape
        logits, expected = logits.double(), expected.double()
        assert (logits - expected).abs().max() <= bound
        largest, second = expected.topk(2).values.unbind(1)
        differs = logits.argmax(1) != expected.argmax(1)
        assert (largest - second)[differs].le(bound).all()


# --- logits ----------------------------------------------------------------------------------------


@each_form
@configs
def test_logits_of_a_random_model_are_those_of_the_model(config: GPT2Config, options):
    """In float32 they are rounded elsewhere: by a few millionths of the largest, which is about 10."""
    engine = make_engine(random_model(config), options)
    compared = compare_logits(engine)
    longest = 4 if options == TRITON_OPTIONS else 12  # one step of each size, in the interpreter
    engine.generate(PROMPTS[:3], [SamplingParams(longest - i) for i in range(3)])
    assert {len(logits) for logits, _ in compared} == {1, 2, 3}  # a batch as it shrinks
    assert_logits_are_close(compared, bound=1e-4)
    assert max(expected.abs().max() for _, expected in compared) > 1


# --- tokens ----------------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("vocab_size", [1, 100])
def test_a_token_that_only_pads_the_vocabulary_is_never_chosen(vocab_size: int, is_drawn: bool, options):
    """Its logit is 0, and all others are below it."""
    model = below_zero(random_model(replace(CONFIGS["2 layers"], vocab_size=vocab_size)))
    params = SamplingParams(2, temperature=5.0 if is_drawn else 0.0, seed=3)
    prompts = [[0], [0, 0, 0]]
    engine = make_engine(model, options)
    seen = [] if is_drawn else compare_logits(engine)
    made = tokens_of(engine.generate(prompts, params))
    assert made == tokens_of(make_engine(model, RUNG_00).generate(prompts, params))
    assert all(0 <= token_id < vocab_size for tokens in made for token_id in tokens)
    for logits, _ in seen:
        assert logits.shape[1] == vocab_size and (logits < 0).all()


# --- what a step is made of ------------------------------------------------------------------------


@configs
def test_the_vocabulary_is_padded_with_rows_of_zeros(config: GPT2Config):
    model = random_model(config)
    step = make_engine(model, PLAIN_OPTIONS).decode_step.device_step
    network = model.network
    padded, norm = step.head.weight, network.decoder_weights().final_norm.weight
    weight = network.lm_head.weight * norm
    V = config.vocab_size
    assert len(padded) == -(-V // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    assert torch.equal(padded[:V], weight) and not padded[V:].any()
    assert padded.is_contiguous() and not padded.requires_grad


@pytest.mark.parametrize("vocab_size", [262_080, 262_144])
def test_one_rows_head_is_a_kernel_if_its_grid_has_room_for_the_vocabulary(vocab_size: int):
    """A grid's second side has 65,535 programs at most."""
    kernels = TRITON._replace(norm_linear=partial(norm_linear_triton, measured={}))
    head = SimpleNamespace(weight=torch.empty(vocab_size, 0))
    has_kernel = FusedDeviceStep.has_head_kernel.fget(SimpleNamespace(kernels=kernels, head=head))
    assert has_kernel == (vocab_size / head_tile(1, 4).block_n <= 65_535)


@pytest.mark.parametrize(
    ("width", "measured", "is_library"),
    [
        (64, {}, True),
        (63, {}, False),  # narrower than a wide one
        (64, {(128, 64): {16: Tile(16, 16, 16, 1, 4, 3)}}, False),
    ],
)
def test_wide_layers_without_measured_tiles_take_the_librarys_products(
    monkeypatch, width, measured, is_library
):
    monkeypatch.setattr(fused, "WIDE_LAYER", 64 * 5 * 128 * 4)
    products = [SimpleNamespace(weight=torch.empty(128, width)) for _ in range(4)]
    layer = FusedLayer(products[0], SimpleNamespace(weight=torch.empty(256, width)), *products[2:])
    kernels = TRITON._replace(norm_linear=partial(norm_linear_triton, measured=measured))
    taken = fused.suited(kernels, layer, ALONE)
    assert (taken.norm_linear is norm_linear_library) == is_library
    assert fused.suited(PLAIN, layer, ALONE) is PLAIN
    assert fused.by_library(PLAIN, layer, ALONE).linear_residual is linear_residual_library
    ranks = SimpleNamespace(size=2)  # the sum of their parts stays where it is
    summed = fused.suited(kernels, layer, ranks)
    by_library = linear_residual_library if is_library else linear_residual_triton
    for kept, product in ((taken, by_library), (summed, linear_residual_triton)):
        product_taken = kept.linear_residual  # makes the norm behind it, too
        assert getattr(product_taken, "func", product_taken) is product
        assert getattr(product_taken, "keywords", {}) == ({"behind": layer.qkv} if is_library else {})


@needs_interpreter
def test_no_two_engines_share_a_workspace():
    """Steps of two engines may run at once, and a workspace is for launches that follow each other."""
    model = random_model(CONFIGS["2 layers"])
    engines = [make_engine(model, TRITON_OPTIONS) for _ in range(2)]
    places, made = [], []
    for engine in engines:
        step = engine.decode_step.device_step
        split_k = step.kernels.linear_residual.keywords["workspace"]
        split = step.attention.attention._workspace
        tensors = [*split_k, *vars(split).values()]
        assert len(tensors) == 5
        places.append({tensor.data_ptr() for tensor in tensors})
        made.append(tokens_of(engine.generate(PROMPTS[:1], SamplingParams(2))))
        assert not split_k.counters.any() and not split.arrived.any()
    assert not places[0] & places[1]
    assert made[0] == made[1]


@needs_interpreter
def test_attention_is_split_by_the_longest_sequence_that_there_can_be(monkeypatch: pytest.MonkeyPatch):
    """Not by the longest that there is, which a graph could not ask for: here 64 tokens, of which a program
    takes 32."""
    asked = []
    split = step_attention.paged_attention_append_split_triton

    def spy(*args: object, **options: object) -> Tensor:
        asked.append(args[9])
        return split(*args, **options)

    monkeypatch.setattr(step_attention, "paged_attention_append_split_triton", spy)
    model = random_model(CONFIGS["2 layers"])
    made = tokens_of(make_engine(model, TRITON_OPTIONS).generate(PROMPTS[:1], SamplingParams(3)))
    assert made == tokens_of(make_engine(model, RUNG_00).generate(PROMPTS[:1], SamplingParams(3)))
    assert asked == [2] * 4  # two steps of two layers


# --- on a GPU --------------------------------------------------------------------------------------

NUM_TOKENS = 60


@pytest.mark.cuda
def test_on_a_gpu_an_engine_is_made_while_another_is_at_work_and_neither_disturbs_the_other(tiny):
    """Made and used in a second thread, whose warm-up runs are in a stream of their own."""
    params = SamplingParams(NUM_TOKENS, stop_on_eos=False)

    def make() -> InferenceEngine:
        return make_engine(tiny, FUSED_AND_SPLIT, "cuda", torch.float32, max_batch_size=8)

    first = make()
    alone = tokens_of(first.generate(TEXTS, params))
    is_done, meanwhile = Event(), []

    def make_and_generate() -> list[tuple[int, ...]]:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                return [tokens_of(make().generate(TEXTS, params)) for _ in range(3)]
        finally:
            is_done.set()

    with ThreadPoolExecutor() as pool:
        second = pool.submit(make_and_generate)
        while not is_done.is_set():
            meanwhile.append(tokens_of(first.generate(TEXTS, params)))
        assert second.result() == [alone] * 3
    assert meanwhile == [alone] * len(meanwhile) and len(meanwhile) > 1
    assert tokens_of(first.generate(TEXTS, params)) == alone  # no count was left


@pytest.mark.cuda
@pytest.mark.parametrize("number", ["08", "09", "10"])
def test_on_a_gpu_graphs_are_captured_with_values_checked(tiny, monkeypatch: pytest.MonkeyPatch, number: str):
    """The warm-up runs look at indices; a capture cannot."""
    params, options = SamplingParams(20, stop_on_eos=False), LADDER[number].options
    made = []
    for is_debug in (False, True):
        monkeypatch.setattr(checks, "DEBUG", is_debug)
        engine = make_engine(tiny, options, "cuda", torch.float32)
        assert isinstance(engine.decode_step.device_step, GraphedStep)
        made.append(tokens_of(engine.generate(TEXTS, params)))
    assert made[0] == made[1]
