"""The Llama family, with grouped heads, on the rungs: the tokens of the dense model and of transformers."""

from dataclasses import replace

import pytest
import torch
from helpers import EXACT, assert_no_block_is_lost, make_engine, tokens_of
from triton_marks import needs_interpreter

from labkit import LADDER, LanguageModel, SamplingParams
from labkit.bench import dense_tokens, transformers_tokens
from labkit.engine.step.fused import FusedDeviceStep
from labkit.errors import OptionError
from labkit.kernels import paged_attention_append_plain
from labkit.model.checkpoint import random_network
from labkit.model.small import SMALL_LLAMA, SMALL_QWEN3, small_model
from labkit.model.tokenizer import WordTokenizer

PROMPTS = [(1, 2, 3), (1, 2, 3), (7, 8, 9, 10), tuple(range(20, 31)), (1, 2, 3, 9)]
GREEDY = SamplingParams(14, stop_on_eos=False)

both = {"llama": SMALL_LLAMA, "qwen3": SMALL_QWEN3}
configs = pytest.mark.parametrize("config", both.values(), ids=both, scope="module")


@pytest.fixture(scope="module")
def model(config):
    return small_model(config=config)


@pytest.fixture(scope="module")
def expected(model):
    dense = dense_tokens(model, PROMPTS, 14)
    assert dense == transformers_tokens(model, PROMPTS, 14)
    assert len({token for each in dense for token in each}) > 20  # no model that says one thing
    return dense


@pytest.mark.slow
@configs
@pytest.mark.parametrize("number", EXACT)
def test_its_tokens_are_those_of_the_dense_model_and_of_transformers_on_every_rung(model, expected, number):
    """With blocks that are shared, filled, copied, evicted and taken away."""
    engine = make_engine(
        model, LADDER[number].options, block_size=4, max_blocks_per_layer=14, prefill_max_batch_size=1
    )
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == expected
    stats = engine.stats()
    assert stats.counters.preemptions > 0 and stats.prefix_evictions > 0
    copies = LADDER[number].options.prefixes == "whole_prompts"
    assert (stats.append_paths.get("copy_on_write", 0) > 0) == copies
    assert engine.kv_manager.k_cache.shape[2] == 2  # of 4 heads, or 6
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@needs_interpreter
@configs
@pytest.mark.parametrize(
    "number", ["09", "13", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("03", "08", "11", "14"))]
)
def test_its_tokens_are_the_same_through_triton_kernels(model, expected, number):
    """With chunks of a prompt beside decode steps, and shares of several pieces."""
    options = replace(LADDER[number].options, attention="triton")
    engine = make_engine(model, options, max_batch_size=4, prefill_chunk_tokens=5)
    made = tokens_of(engine.generate(PROMPTS[2:], SamplingParams(6, stop_on_eos=False)))
    assert made == [tokens[:6] for tokens in expected[2:]]


@pytest.mark.cuda
@configs
@pytest.mark.parametrize("number", EXACT)
def test_on_a_gpu_its_tokens_are_the_same_on_every_rung(model, expected, number):
    """Few requests in little room, and so many that rung 11 and above take them in two halves, in graphs."""
    for prompts, blocks in ((PROMPTS, 14), (PROMPTS * 8, 400)):
        together = {"max_batch_size": len(prompts), "prefill_max_batch_size": len(prompts)}
        sizes = {"max_blocks_per_layer": blocks, "prefill_chunk_tokens": 16}
        engine = make_engine(model, LADDER[number].options, device="cuda", **together, **sizes)
        assert tokens_of(engine.generate(prompts, GREEDY)) == expected * (len(prompts) // len(PROMPTS))
        assert_no_block_is_lost(engine)


@configs
@pytest.mark.parametrize("name", ["kv_write", "layer_kernels"])
def test_kernels_of_the_readers_for_other_layers_are_refused(model, name):
    part = {"kv_write": paged_attention_append_plain, "layer_kernels": FusedDeviceStep}[name]
    with pytest.raises(OptionError, match=rf"^the part for {name} is one for layers such as GPT-2's, and "):
        make_engine(model, LADDER["09"].options, parts={name: part})


@configs
def test_moved_to_another_dtype_its_angles_stay_in_float32(model):
    half = model.to("cpu", torch.bfloat16)
    assert half.network.rotary().cos.dtype == torch.float32
    (done,) = make_engine(half).generate([PROMPTS[0]], GREEDY)
    assert len(done.token_ids) == 14


@configs
def test_any_of_its_ends_ends_a_text(model, expected):
    first, *_, last = dict.fromkeys(expected[0][3:])
    network = random_network(replace(model.config, more_eos_token_ids=(first,)), seed=0)
    network.load_state_dict(model.network.state_dict())
    ending = LanguageModel("random:ending", network, WordTokenizer(256, last))
    for number in EXACT:
        (done,) = make_engine(ending, LADDER[number].options).generate([PROMPTS[0]], SamplingParams(14))
        assert done.token_ids == expected[0][: expected[0].index(first) + 1]
        assert done.finish_reason == "stop"
