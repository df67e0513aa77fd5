"""How long each request waits, how long it may, and how often later ones come before it."""

import pytest
from helpers import make_engine, run
from waits import record_waits

from labkit import SamplingParams


def served(prompts_and_lengths, **settings):
    engine = make_engine(prefix_cache=False, **settings)
    with record_waits(engine) as waits:
        for prompt, num_tokens in prompts_and_lengths:
            engine.add_request(prompt, SamplingParams(num_tokens))
        run(engine)
    assert not {"add", "admit"} & set(vars(engine.scheduler))
    return waits


def test_one_after_the_other_each_waits_for_all_tokens_before_it():
    """In a batch of one, a step makes one token, so the wait is its bound."""
    waits = served([((1, 2), 3), ((3,), 5), ((4,), 2)], max_batch_size=1)
    assert (waits.longest, waits.nearest_to_bound, waits.most_waiting) == (3 + 5 + 1, 1.0, 3)
    assert waits.most_passed_over == 0


def test_in_a_batch_of_two_a_wait_is_shorter_than_its_bound():
    waits = served([((1, 2), 8), ((3,), 8), ((4,), 2)], max_batch_size=2, prefill_max_batch_size=2)
    assert waits.longest == 9  # the step in which a newcomer is admitted is the ninth
    assert waits.nearest_to_bound == 1.0  # of the first, who waits for nobody


@pytest.mark.parametrize(("policy", "passed_over"), [("fifo", 0), ("pack", 2)])
def test_under_pack_a_long_prompt_is_passed_over_as_often_as_the_window_is_long(policy, passed_over):
    long, short = tuple(range(20)), (1,)
    clients = [(short, 2), (long, 2), *[(short, 2)] * 5]
    settings = {"max_batch_size": 1, "admission_policy": policy, "pack_window": 2}
    waits = served(clients, **settings)
    assert waits.most_passed_over == passed_over
    assert waits.nearest_to_bound <= 1.0


def test_who_is_preempted_and_waits_again_counts_once():
    waits = served([((1, 2, 3), 9), ((4, 5, 6), 9)], max_blocks_per_layer=4, max_batch_size=2)
    assert (waits.longest, waits.most_passed_over) == (1, 0)
