"""Speculation: the tokens without drafts, in fewer steps; nothing of a refused draft stays."""

from contextlib import suppress
from dataclasses import replace
from itertools import cycle, pairwise

import pytest
import torch
from drafting_cases import NGRAMS, PLACES, REPEATED, drafting, texts_of
from helpers import (
    Boom,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_marks import needs_interpreter, needs_triton

from labkit import FinishReason, SamplingParams
from labkit.engine.drafting import FIRST_PAUSE, MOST_SAVED, PRICE, DraftBalance
from labkit.engine.step.verify import MOST_ROWS, drafts_each
from labkit.engine.step.verify_flight import ResidentVerifyStep
from labkit.ladder import BLOCK_PREFIX_CACHE
from labkit.model.small import SMALL_MODELS
from labkit.model.small import small_model as model_of

pytestmark = pytest.mark.slow


# --- the same tokens -------------------------------------------------------------------------------

EACH_PARAMS = st.sampled_from(
    [
        SamplingParams(24, stop_on_eos=False),
        SamplingParams(17),
        SamplingParams(24, temperature=0.3, seed=1, stop_on_eos=False),
        SamplingParams(9, temperature=0.7, top_k=5, top_p=0.9, seed=2),
        SamplingParams(24, stop=["e", "!"]),
    ]
)


@pytest.mark.parametrize("family", SMALL_MODELS)
@given(
    requests=st.lists(st.tuples(st.sampled_from(REPEATED), EACH_PARAMS), min_size=1, max_size=6),
    block_size=st.integers(1, 6),
    num_blocks=st.sampled_from([44, 60, 300]),
    max_batch_size=st.integers(1, 6),
    as_on_gpu=st.booleans(),
)
@settings(max_examples=16, deadline=None)
def test_whatever_runs_together_the_tokens_are_those_of_rung_14(
    family, requests, block_size, num_blocks, max_batch_size, as_on_gpu
):
    model = model_of(config=SMALL_MODELS[family])
    prompts, params = zip(*requests, strict=True)
    made = []
    for options in (BLOCK_PREFIX_CACHE, NGRAMS):
        engine = make_engine(
            model,
            options,
            block_size=block_size,
            max_blocks_per_layer=num_blocks,
            max_batch_size=max_batch_size,
        )
        engine.readback.as_on_gpu = as_on_gpu
        request_ids = [engine.add_request(*each) for each in zip(prompts, params, strict=True)]
        outputs = run(engine)
        ends = {o.request_id: o.completion for o in outputs if o.completion}
        made.append([(ends[i].token_ids, ends[i].text, ends[i].finish_reason) for i in request_ids])
        handed_out = tokens_by_request(outputs)
        assert [handed_out[i] for i in request_ids] == [ends[i].token_ids for i in request_ids]
        assert_no_block_is_lost(engine)
    assert made[0] == made[1]


def test_a_text_that_repeats_itself_takes_fewer_steps(tiny):
    """Greedy, a small model soon says the same again and again."""
    params = SamplingParams(40, stop_on_eos=False)
    engine = make_engine(tiny, NGRAMS, block_size=8, max_blocks_per_layer=40)
    made = tokens_of(engine.generate(REPEATED[:1], params))
    assert made == tokens_of(make_engine(tiny, BLOCK_PREFIX_CACHE).generate(REPEATED[:1], params))
    counters = engine.stats().counters
    assert counters.generated_tokens == 40
    assert counters.decode_steps == 39 - counters.accepted_tokens
    assert counters.drafted_tokens >= counters.accepted_tokens >= 10


def test_a_text_that_ends_amid_a_steps_tokens_gets_none_of_those_behind():
    prompts, params = REPEATED[1:2], SamplingParams(24)
    (made,) = (tokens_alone(prompt, params) for prompt in prompts)
    engine = make_engine(small_model(eos_token_id=made[4]), NGRAMS)
    drafting(engine, texts_of(prompts, params))
    assert tokens_of(engine.generate(prompts, params)) == [made[:5]]
    counters = engine.stats().counters
    assert counters.generated_tokens == 5 and counters.accepted_tokens > 0


# --- failures --------------------------------------------------------------------------------------


def test_logits_that_are_no_numbers_behind_a_draft_end_only_their_own_request(monkeypatch):
    engine = make_engine(None, NGRAMS)
    drafting(engine, texts_of(REPEATED[1:3], SamplingParams(24)))
    layers = engine.readback.verify_step.device_step.layers
    chunk_logits, params = layers.chunk_logits, SamplingParams(24)
    rows = []

    def broken(token_ids, positions):
        logits = chunk_logits(token_ids, positions)
        rows.append(len(logits))
        if (
            rows[-1] > 8 and max(rows[:-1], default=0) <= 8
        ):  # both requests have drafts: the first one's second row
            logits[1, 3] = torch.nan
        return logits

    monkeypatch.setattr(layers, "chunk_logits", broken)
    bad, good = engine.generate(REPEATED[1:3], params)
    assert max(rows) > 8
    assert good.token_ids == tokens_alone(REPEATED[2], params)
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.token_ids == tokens_alone(REPEATED[1], params)[: len(bad.token_ids)]
    assert_no_block_is_lost(engine)


# --- who drafts ------------------------------------------------------------------------------------


def test_a_full_batch_drafts_less():
    assert [drafts_each(n) for n in (1, 2, 4, 5, 8, 16, 17, 64)] == [7, 7, 7, 5, 3, 1, 0, 0]
    assert all(n * (drafts_each(n) + 1) <= max(n, MOST_ROWS) for n in range(1, 100))
    engine = make_engine(None, NGRAMS, max_batch_size=20, max_blocks_per_layer=400)
    prompts, params = [REPEATED[i % 5] for i in range(20)], SamplingParams(8)
    assert tokens_of(engine.generate(prompts, params)) == [tokens_alone(p, params) for p in prompts]


def test_a_request_pauses_when_its_drafts_cost_more_than_they_bring():
    balance = DraftBalance()
    balance.settle(3, 0, 5)
    assert balance.drafts(5) and balance.saved == PRICE
    balance.settle(0, 0, 6)  # there was none
    assert balance.drafts(6)
    balance.settle(7, 0, 7)
    assert not balance.drafts(7) and balance.drafts(7 + FIRST_PAUSE)
    for _ in range(2):
        balance.settle(7, 0, 40)
    assert not balance.drafts(39 + 2 * FIRST_PAUSE) and balance.drafts(40 + 2 * FIRST_PAUSE)
    for _ in range(9):
        balance.settle(7, 7, 99)
    assert balance.saved == MOST_SAVED and balance.pause == FIRST_PAUSE


def test_a_request_whose_drafts_fail_goes_on_one_step_ahead_and_tries_again(monkeypatch):
    engine = make_engine(None, NGRAMS, max_blocks_per_layer=40)
    drafting(engine, texts_of([REPEATED[4]], SamplingParams(50, stop_on_eos=False)), wrong_at=0)
    drafted = []
    launch = ResidentVerifyStep.launch

    def noted(self, running, *args):
        drafted.append(len(next(iter(running)).output_token_ids))
        return launch(self, running, *args)

    monkeypatch.setattr(ResidentVerifyStep, "launch", noted)
    (done,) = engine.generate([REPEATED[4]], SamplingParams(50, stop_on_eos=False))
    assert done.token_ids == tokens_alone(REPEATED[4], SamplingParams(50, stop_on_eos=False))
    first = 2 + 1  # the second bad draft leaves less than the price of a third
    second = first + FIRST_PAUSE + 1  # with the token that is in flight by then
    assert drafted == [1, 2, second, second + 1]


# --- kernels and graphs ----------------------------------------------------------------------------


@needs_interpreter
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # it wraps, as it should
def test_through_triton_kernels_in_the_interpreter_the_tokens_are_the_same():
    params = [SamplingParams(8), SamplingParams(8, temperature=0.3, seed=1)]
    prompts = [(*prompt, *tokens_alone(prompt, SamplingParams(3)), *prompt) for prompt in REPEATED[2:4]]
    engine = make_engine(None, replace(NGRAMS, attention="triton"), max_batch_size=2)
    made = tokens_of(engine.generate(prompts, params))
    assert made == [tokens_alone(*each) for each in zip(prompts, params, strict=True)]
    assert engine.stats().counters.drafted_tokens > 0


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("family", ["tiny-gpt2", "small-llama", "small-qwen3"])
@pytest.mark.parametrize("num_requests", [1, 3, 8, 13, 20])
def test_on_a_gpu_graphs_make_the_tokens_of_rung_14(family, tiny, num_requests):
    model = tiny if family == "tiny-gpt2" else model_of(config=SMALL_MODELS[family])
    prompts = [REPEATED[i % 5] for i in range(num_requests)]
    params = [
        SamplingParams(20 + i, temperature=0.3 * (i % 2), top_k=5 * (i % 4 == 1), seed=i, stop_on_eos=False)
        for i in range(num_requests)
    ]
    made = {}
    for options in (NGRAMS, BLOCK_PREFIX_CACHE):
        sizes = {"block_size": 8, "max_blocks_per_layer": 300}
        together = {"max_batch_size": 20, "prefill_max_batch_size": 20}
        engine = make_engine(model, options, device="cuda", **sizes, **together)
        made[options] = tokens_of(engine.generate(prompts, params))
        counters = engine.stats().counters
        if options is BLOCK_PREFIX_CACHE:
            assert counters.drafted_tokens == 0
        elif num_requests >= 8:  # few texts may repeat nothing
            assert counters.accepted_tokens > 0
        assert_no_block_is_lost(engine)
    assert made[NGRAMS] == made[BLOCK_PREFIX_CACHE]


# --- as on a GPU: a step is launched before the one in front is read ---------------------------------


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
