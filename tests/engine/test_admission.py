"""Who gets memory, at the price of one look per request, and of none while nothing can have changed."""

from collections import Counter

import pytest
from helpers import GREEDY, LADDER, assert_no_block_is_lost, make_engine, run, tokens_alone, tokens_by_request

from labkit import SamplingParams
from labkit.engine import InferenceSession


def counted(monkeypatch, owner, *names):
    """How often each of the owner's functions is called from now on."""
    calls = Counter()

    def counting(name, function):
        def call(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return calls


@pytest.mark.parametrize("num_requests", [4, 8, 16])
def test_an_admission_looks_at_each_request_a_few_times_however_many_there_are(monkeypatch, num_requests):
    engine = make_engine(max_batch_size=32, prefill_max_batch_size=32, prefix_cache=False)
    for i in range(num_requests):
        engine.add_request((i, 2, 3), GREEDY)
    calls = counted(monkeypatch, InferenceSession, "blocks_to_reach")
    engine.step()
    assert engine.stats().running == num_requests
    assert calls["blocks_to_reach"] <= 2 * num_requests


@pytest.mark.slow
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_while_a_waiting_request_cannot_fit_steps_go_on_as_if_nobody_waited(monkeypatch, prefix_cache):
    engine = make_engine(
        options=LADDER["10"].options, max_blocks_per_layer=16, block_size=4, prefix_cache=prefix_cache
    )
    long = SamplingParams(50, stop_on_eos=False)
    first = engine.add_request((1, 2, 3), long)
    second = engine.add_request(tuple(range(50, 55)), long)
    outputs = engine.step() + engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 0)
    third = engine.add_request(tuple(range(100, 155)), SamplingParams(4))  # needs 14 blocks of 16
    outputs += engine.step()
    calls = counted(monkeypatch, engine.decode_step, "launch", "launch_again")
    for _ in range(12):
        outputs += engine.step()
    assert engine.stats().waiting == 1
    assert calls == {"launch_again": 12}
    monkeypatch.undo()
    handed_out = tokens_by_request([*outputs, *run(engine)])
    assert handed_out[first] == tokens_alone((1, 2, 3), long)
    assert handed_out[second] == tokens_alone(tuple(range(50, 55)), long)
    assert handed_out[third] == tokens_alone(tuple(range(100, 155)), SamplingParams(4))
    assert_no_block_is_lost(engine)


def test_a_block_that_comes_back_lets_the_first_in_the_queue_try_again():
    engine = make_engine(max_blocks_per_layer=4, prefix_cache=False)
    first = engine.add_request((1, 2, 3, 4, 5, 6, 7, 8, 9), SamplingParams(3))
    engine.step()
    second = engine.add_request((1,) * 9, SamplingParams(3))
    engine.step()
    assert engine.stats().waiting == 1
    engine.cancel(first)
    engine.step()
    assert (engine.stats().waiting, engine.stats().running) == (0, 1)
    assert tokens_by_request(run(engine))[second][-1] == tokens_alone((1,) * 9, SamplingParams(3))[-1]


def test_whoever_comes_to_the_head_of_the_queue_is_asked_though_nothing_came_back():
    engine = make_engine(max_blocks_per_layer=6, prefix_cache=False)
    engine.add_request((1, 2, 3, 4, 5), SamplingParams(3))
    engine.step()
    too_big = engine.add_request((1,) * 20, SamplingParams(2))
    small = engine.add_request((5, 6), SamplingParams(2))
    engine.step()
    assert engine.stats().waiting == 2
    engine.cancel(too_big)
    engine.step()
    assert engine.stats().waiting == 0 and small in {r.request_id for r in engine.scheduler.running}


def test_a_prompt_that_has_just_been_computed_lets_its_twin_in_without_a_block_coming_back():
    """The second of two equal prompts does not fit beside the first, but shares its blocks afterwards."""
    engine = make_engine(max_blocks_per_layer=5, block_size=4)
    prompt = tuple(range(12))
    ids = [engine.add_request(prompt, SamplingParams(1)) for _ in range(2)]
    outputs = engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (0, 1)
    outputs += run(engine)
    assert tokens_by_request(outputs) == {i: tokens_alone(prompt, SamplingParams(1)) for i in ids}
    assert engine.stats().counters.reused_tokens == 12
