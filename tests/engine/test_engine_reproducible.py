"""On the CPU, the same seeds give the same tokens: on every run, in any batch, in any process."""

import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from helpers import BY_DAY, ENGINES, engines_by_day, make_engine, tokens_alone, tokens_of
from same_again import EACH_PARAMS, PROMPTS, outputs_of

pytestmark = pytest.mark.slow

ALONE = [tokens_alone(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]


@engines_by_day
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("max_batch_size", [2, 8])
def test_a_request_gets_the_same_tokens_in_batches_of_any_size_and_order(
    options, max_batch_size, prefix_cache
):
    engine = make_engine(options=options, max_batch_size=max_batch_size, prefix_cache=prefix_cache)
    dice = random.Random(max_batch_size)
    order = list(range(len(PROMPTS)))
    for _ in range(3):  # what was cached by one round is found by the next
        made = tokens_of(engine.generate([PROMPTS[i] for i in order], [EACH_PARAMS[i] for i in order]))
        assert dict(zip(order, made, strict=True)) == dict(enumerate(ALONE))
        dice.shuffle(order)


def test_a_new_process_gives_the_same_tokens_in_the_same_steps(monkeypatch):
    """Its strings, and so its sets of them, have other hashes."""
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    each_options = [ENGINES[name] for name in BY_DAY]
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        assert list(process.map(outputs_of, each_options)) == list(map(outputs_of, each_options))
