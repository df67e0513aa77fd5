"""Speculation as on a GPU: a step is launched before the one in front is read, whichever of them verifies."""

from contextlib import suppress
from itertools import cycle, pairwise

import pytest
from drafting_cases import NGRAMS, PLACES, REPEATED, drafting, texts_of
from helpers import (
    Boom,
    assert_no_block_is_lost,
    failing,
    make_engine,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import SamplingParams

pytestmark = pytest.mark.slow


@given(
    failures=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(list(PLACES))), max_size=5),
    cancelled=st.integers(0, 20),
    wrong_at=st.sampled_from([0, 1, 3, 99]),
    drafts=st.lists(st.booleans(), min_size=1, max_size=4),
    as_on_gpu=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_wherever_calls_fail_every_request_has_its_tokens(failures, cancelled, wrong_at, drafts, as_on_gpu):
    """Whichever of two steps in flight verifies drafts. failures: so many steps after the one before. drafts:
    whether there is a sign of them, from call to call."""
    params = SamplingParams(24, stop_on_eos=False)
    expected = [tokens_alone(prompt, params) for prompt in REPEATED]
    engine = make_engine(None, NGRAMS, block_size=3, max_batch_size=4, max_blocks_per_layer=80)
    engine.readback.as_on_gpu = as_on_gpu
    drafting(engine, texts_of(REPEATED, params), wrong_at)
    turns = cycle(drafts)
    engine.readback.repeats = lambda request: next(turns)
    ids = [engine.add_request(prompt, params) for prompt in REPEATED]
    outputs = []

    def step() -> None:
        if len(outputs) >= cancelled and ids[0] in engine.delivery.requests:
            engine.cancel(ids[0])
        outputs.extend(engine.step())
        engine.check_integrity()

    for num_steps, place in failures:
        for _ in range(num_steps):
            step()
        owner, name = PLACES[place](engine)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name)))
            with suppress(Boom):
                step()
        engine.check_integrity()
    while engine.has_work:
        step()
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids[1:]] == expected[1:]
    first = handed_out.get(ids[0], ())
    assert first == expected[0][: len(first)]
    assert_no_block_is_lost(engine)


def test_a_step_is_launched_before_the_one_in_front_is_read():
    """As long as the request would draft whatever comes of it; and then the GPU waits for the host once."""
    engine, params = make_engine(None, NGRAMS, max_blocks_per_layer=40), SamplingParams(50, stop_on_eos=False)
    engine.readback.as_on_gpu = True
    drafting(engine, texts_of(REPEATED[:1], params))
    engine.add_request(REPEATED[0], params)
    ahead = []
    while engine.has_work:
        engine.step()
        ahead.append(engine.readback.is_ahead)
        engine.check_integrity()
    counters = engine.stats().counters
    assert (counters.decode_steps, counters.accepted_tokens) == (7, 49 - 7)  # 7 drafts a step, the last has 0
    assert ahead == [False, False, *[True] * 6, False]  # the first two are the prompt's


def test_where_a_step_costs_the_same_without_drafts_it_needs_a_sign_of_them():
    """As on a GPU: while no two tokens of the text come again, no step looks for drafts."""
    prompt = REPEATED[4]
    for num_tokens, foretells in ((8, False), (20, True)):
        params = SamplingParams(num_tokens, stop_on_eos=False)
        engine = make_engine(None, NGRAMS, max_blocks_per_layer=40)
        engine.readback.as_on_gpu = True
        verify_step, launched = engine.readback.verify_step, []
        launch = verify_step.launch
        verify_step.launch = lambda *args, launch=launch, each=launched: each.append(1) or launch(*args)
        (made,) = tokens_of(engine.generate([prompt], params))
        assert made == tokens_alone(prompt, params)
        pairs = list(pairwise((*prompt, *made)))
        assert (len(set(pairs)) < len(pairs)) == foretells == bool(launched)


def test_where_a_steps_price_is_shared_each_pays_its_part():
    """As on a GPU: alone a request pauses after its first bad draft, with others it can go on."""
    for prompts, num_drafted in ((REPEATED[:1], 7), (REPEATED[:4], 4 * 3 * 7)):
        params = SamplingParams(16, stop_on_eos=False)
        engine = make_engine(None, NGRAMS, max_blocks_per_layer=80)
        engine.readback.as_on_gpu = True
        drafting(engine, texts_of(prompts, params), wrong_at=0)
        engine.generate(prompts, params)
        assert engine.stats().counters.drafted_tokens == num_drafted
        assert engine.stats().counters.accepted_tokens == 0
