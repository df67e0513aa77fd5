"""How large an engine is: what was asked for and can be had, or what fits the model and the device."""

import pytest
import torch
from bad_values import refused
from helpers import CONFIG, every_engine, make_engine, small_model, tokens_alone

from labkit import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine import sizes
from labkit.errors import OptionError, RequestError
from labkit.model import GPT2Config

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
TOKEN_BYTES = CONFIG.kv_values_per_token * 4


OPEN = CacheConfig(), SchedulerConfig()
SMALLEST = GPT2Config(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)


def fitted(cache=OPEN[0], scheduler=OPEN[1], device=CPU, dtype=torch.float32, kept=None, config=CONFIG):
    cache, scheduler = sizes.fitted(device, dtype, kept or dtype, config, cache, scheduler)
    budgets = scheduler.max_batch_size, scheduler.prefill_max_batch_size, scheduler.prefill_max_tokens
    return cache.max_blocks_per_layer, *budgets


@pytest.fixture
def free(monkeypatch):
    """Sets the memory that is free: `free(bytes)`, of more than anybody asks for."""
    monkeypatch.setattr(sizes, "memory_of", lambda _: 2**60)
    return lambda num_bytes: monkeypatch.setattr(sizes, "free_memory", lambda _: num_bytes)


def test_where_memory_is_no_limit_a_full_batch_of_the_longest_fits_and_its_prompts_come_together(free):
    free(2**40)
    assert fitted(device=GPU) == (256, 256, 256, 32768)  # 64 positions: a block each
    assert fitted(device=CPU) == (32, 32, 32, 2048)
    assert fitted(CacheConfig(block_size=5), SchedulerConfig(3)) == (3 * 13, 3, 3, 2048)


def test_what_was_asked_for_is_had(free):
    free(2**40)
    assert fitted(CacheConfig(max_blocks_per_layer=5), SchedulerConfig(8, 2, 7)) == (5, 8, 2, 7)


def test_the_pool_takes_its_share_of_what_is_free_and_prompts_what_is_left(free):
    free(10 * 64 * TOKEN_BYTES)  # ten blocks
    assert fitted(device=GPU)[0] == 9
    assert fitted(device=CPU)[0] == 2
    assert fitted(CacheConfig(memory_share=0.5))[0] == 5
    assert fitted(CacheConfig(max_blocks_per_layer=5), device=GPU)[3] == sizes.FEWEST_PROMPT_TOKENS
    free(2 * 1000 * sizes.HIDDEN_STATES_PER_TOKEN * CONFIG.hidden_size * 4)
    assert fitted(CacheConfig(memory_share=0.5), SchedulerConfig(10**6), GPU)[3] in range(1000, 1010)


@pytest.mark.parametrize("kept", [torch.uint8, torch.float8_e4m3fn], ids=str)
def test_in_8_bits_nearly_twice_the_blocks_fit_for_their_scales_take_little(free, kept):
    free(2**30)
    asked = {"scheduler": SchedulerConfig(10**6), "dtype": torch.float16, "config": SMALLEST}
    wide, narrow = fitted(**asked)[0], fitted(**asked, kept=kept)[0]
    assert 1.9 < narrow / wide == pytest.approx(2 * 64 / (64 + 2), rel=1e-2)  # heads of 64, scales of 2


def test_memory_for_not_one_block_is_refused(free):
    free(64 * TOKEN_BYTES)
    with refused(OptionError, "not one block of 64 tokens fits: .* Lower block_size"):
        fitted()


def test_the_engine_says_what_was_fitted():
    stats = InferenceEngine(small_model(), device="cpu", cache=CacheConfig(block_size=16)).stats()
    assert stats.cache == CacheConfig(16, max_blocks_per_layer=32 * 64 // 16, max_positions=64)
    assert stats.scheduler == SchedulerConfig(32, 32, 2048)
    assert stats.blocks_per_layer == stats.cache.max_blocks_per_layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_pool_may_be_as_large_as_the_memory_and_no_larger(monkeypatch, dtype):
    num_bytes = 5 * 4 * CONFIG.kv_values_per_token * dtype.itemsize  # five blocks of four tokens
    monkeypatch.setattr(sizes, "memory_of", lambda _: num_bytes)

    def make(num_blocks):
        cache, scheduler = CacheConfig(4, num_blocks), SchedulerConfig(1)
        return InferenceEngine(small_model(), device="cpu", dtype=dtype, cache=cache, scheduler=scheduler)

    assert make(5).stats().blocks_per_layer == 5
    with refused(OptionError, r"KV pool is too large: .* max_blocks_per_layer \(6; "):
        make(6)


def test_the_logits_of_a_batch_may_be_as_large_as_the_memory_and_no_larger(monkeypatch):
    monkeypatch.setattr(sizes, "memory_of", lambda _: 12 * CONFIG.vocab_size * 4)
    make_engine(max_blocks_per_layer=4, max_batch_size=12)
    with refused(OptionError, r"logits of a full batch .* Lower max_batch_size \(13\)"):
        make_engine(max_blocks_per_layer=4, max_batch_size=13)


def test_a_system_that_does_not_say_its_memory_limits_nothing(monkeypatch):
    monkeypatch.delattr(sizes.os, "sysconf_names")
    assert sizes.memory_of(CPU) >= 2**62


@every_engine
def test_an_engine_may_have_fewer_positions_than_its_model(options):
    engine = make_engine(options=options, max_positions=11)
    assert (engine.max_positions, engine.kv_manager.max_blocks_per_seq) == (11, 3)
    prompt, params = (1, 2, 3), SamplingParams(8)
    assert engine.generate([prompt], params)[0].token_ids == tokens_alone(prompt, params)
    with refused(RequestError, "together 12; the engine has 11 positions"):
        engine.generate([(*prompt, 4)], params)
    with refused(OptionError, "max_positions is 65, and the model has 64 positions"):
        make_engine(max_positions=65)
