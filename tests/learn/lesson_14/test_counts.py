"""What lesson 14 counts: tokens computed, waits, blocks held."""

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, lab, load_model
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.counts import (
    Served,
    Turn,
    computed_in_words,
    computed_of,
    converse,
    serve,
    visitors,
)
from labkit.learn.lesson_14.texts import behind_system, questions

SYSTEM = tuple(range(1, 13))
PROMPTS = [(*SYSTEM, 20 + i, 30) for i in range(4)]


def engine(number):
    return InferenceEngine(small_model(), LADDER[number].options, device="cpu", cache=CacheConfig(4, 40))


def test_below_every_prompt_is_computed_and_above_its_beginning_once():
    below, above = serve(engine("13"), PROMPTS), serve(engine("14"), PROMPTS)
    assert (below.prompt_tokens, below.computed) == (56, 56)
    assert (above.prompt_tokens, above.computed) == (56, 14 + 3 * 2)
    assert above.waits[0] == 14 and above.waits[-1] == 20 and above.median_wait <= 20
    assert above.most_blocks < below.most_blocks


def test_the_median_wait_is_that_of_the_lower_half_s_last():
    assert Served(0, 0, (5, 1, 9, 7), 0).median_wait == 5
    assert Served(0, 0, (3,), 0).median_wait == 3


def test_a_turn_computes_what_lies_behind_the_last_full_block():
    asked, params = [(1, 2), (3, 4)], SamplingParams(6, stop_on_eos=False)
    first, second = converse(engine("14"), SYSTEM, asked, params)
    assert first == Turn(14, 14)
    assert second == Turn(14 + 6 + 2, 22 - 16)  # of 20 tokens 19 are written: four full blocks


class NeverLetsGo(BlockCache):
    def evict_one(self):
        return False


@pytest.mark.slow
def test_a_cache_that_lets_no_block_go_is_told_and_does_not_hang():
    tight = lab.start("14").build(prefixes=NeverLetsGo, cache=CacheConfig(16, 18))
    assert computed_in_words(tight) == "prompt 6 of 12 waits for ever: the cache lets no block go"
    assert not tight.has_work


@pytest.mark.slow
def test_a_cache_alone_counts_what_an_engine_computes():
    model = load_model("data/tiny-gpt2")
    prompts = behind_system(model.tokenizer, questions(12))
    for size in (16, 64):
        built = InferenceEngine(model, LADDER["14"].options, device="cpu", cache=CacheConfig(size))
        for prompt in prompts:
            built.generate([prompt], SamplingParams(1, stop_on_eos=False))
        assert built.stats().counters.prefill_tokens == computed_of(prompts, size)


def test_visitors_are_eight_questions_and_four_strangers():
    prompts = visitors(load_model("data/tiny-gpt2").tokenizer)
    assert len(prompts) == 12 and sum(len(prompt) == 80 for prompt in prompts) == 4
    assert len({prompt[:16] for prompt in prompts}) == 5
