"""When something inside a step fails: no token and no block is lost, and everybody goes on."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import (
    GREEDY,
    SEEDED,
    Boom,
    ByteTokenizer,
    assert_no_block_is_lost,
    every_engine,
    failing,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS

from labkit import LADDER, FinishReason, LanguageModel
from labkit.engine import prefill as prefill_module
from labkit.engine import request as request_module
from labkit.errors import OutOfBlocksError


def add_all(engine, prompts, each_params):
    return [engine.add_request(*each) for each in zip(prompts, each_params, strict=True)]


class Illegible(ByteTokenizer):
    """Cannot decode one token."""

    def decode(self, token_ids):
        if EXPECTED[0][3] in token_ids:
            raise ValueError("what is this")
        return super().decode(token_ids)


@pytest.mark.parametrize("rung", ["05", "14"])
def test_a_text_that_cannot_be_searched_for_a_stop_string_ends_its_own_request(rung):
    """The others' text is not decoded at all in a step."""
    model = LanguageModel("illegible", small_model().network, Illegible())
    engine = make_engine(model, LADDER[rung].options)
    stopping = replace(GREEDY, stop="no such text")
    bad, *good = engine.generate([PROMPTS[0], *PROMPTS], [stopping, *EACH_PARAMS])
    assert (bad.finish_reason, bad.token_ids) == (FinishReason.ERROR, EXPECTED[0][:3])
    assert bad.error == "its text cannot be decoded: what is this"
    assert tokens_of(good) == EXPECTED
    assert_no_block_is_lost(engine)


# --- a step that raises ----------------------------------------------------------------------------


def held_by(engine):
    """What each running request has in the cache, and how many blocks are free in each layer."""
    running = engine.scheduler.running
    held = {r.request_id: [kv.tolist() for kv in session.dense_kv()] for r, session in running.items()}
    return held, [engine.kv_manager.num_free(i) for i in range(engine.kv_manager.num_tables)]


@pytest.mark.slow
@pytest.mark.parametrize("at_call", [0, 2, 5])
@every_engine
def test_when_blocks_run_out_in_the_middle_of_a_step_nothing_of_it_stays(monkeypatch, options, at_call):
    """Three of four requests take a block in each of two layers; for one of the six there is none. (Where one
    table serves both layers, for one of three.)"""
    # decode_first: no step is launched behind the prefill
    engine = make_engine(options=options, prefix_cache=False, decode_first=True)
    if at_call >= 3 * engine.kv_manager.num_tables:
        pytest.skip("one table serves both layers")
    prompts = [(1, 2, 3, 4), (5, 6), (7, 8, 9, 10), tuple(range(20, 28))]
    request_ids = add_all(engine, prompts, [GREEDY] * 4)
    outputs = list(engine.step())
    while engine.scheduler.joining:
        outputs += engine.step()
    before = held_by(engine)
    allocate = failing(engine.kv_manager.allocate_block, at_call, OutOfBlocksError)
    monkeypatch.setattr(engine.kv_manager, "allocate_block", allocate)
    with pytest.raises(OutOfBlocksError):
        engine.step()
    engine.check_integrity()
    assert held_by(engine) == before
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in request_ids] == [tokens_alone(prompt, GREEDY) for prompt in prompts]
    assert_no_block_is_lost(engine)


def test_what_was_decoded_before_the_prefill_failed_is_handed_out_later(monkeypatch):
    engine = make_engine(decode_first=True)
    first = engine.add_request((1, 2, 3), GREEDY)
    outputs = list(engine.step())
    second = engine.add_request((4, 5), GREEDY)
    monkeypatch.setattr(prefill_module, "prefill_sessions", failing(prefill_module.prefill_sessions))
    with pytest.raises(Boom):
        engine.step()
    later = list(engine.step())
    assert [o.request_id for o in later] == [first, first, second]
    handed_out = tokens_by_request(outputs + later + run(engine))
    assert handed_out == {first: tokens_alone((1, 2, 3), GREEDY), second: tokens_alone((4, 5), GREEDY)}


@pytest.mark.parametrize("decode_first", [False, True])
@pytest.mark.parametrize("rung", ["00", "13"])
def test_first_tokens_that_were_read_and_then_lost_are_made_again(monkeypatch, rung, decode_first):
    engine = make_engine(options=LADDER[rung].options, prefix_cache=False, decode_first=decode_first)
    request_ids = add_all(engine, PROMPTS, EACH_PARAMS)
    read = engine.prefill.read

    def fails_behind():
        read()
        raise Boom

    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(engine.prefill, "read", fails_behind)
        while True:
            assert not engine.step()
    assert [r.request_id for r in engine.scheduler.waiting] == request_ids
    handed_out = tokens_by_request(run(engine))
    assert [handed_out[i] for i in request_ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("at_call", [0, 4])
def test_generate_cancels_its_own_requests_when_a_step_fails_and_no_others(monkeypatch, at_call):
    engine = make_engine(prefix_cache=False)
    other = engine.add_request(PROMPTS[0], GREEDY)
    monkeypatch.setattr(request_module, "sample", failing(request_module.sample, at_call))
    with pytest.raises(Boom):
        engine.generate(PROMPTS[1:], EACH_PARAMS[1:])
    assert engine.stats().counters.finished == {"cancelled": 4}
    assert tokens_by_request(run(engine)) == {other: EXPECTED[0]}
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert_no_block_is_lost(engine)


def test_a_stream_cancels_its_request_when_a_step_fails_and_no_others(monkeypatch):
    engine = make_engine(prefix_cache=False)
    other = engine.add_request(PROMPTS[0], GREEDY)
    stream = engine.stream(PROMPTS[1], SEEDED)
    next(stream)
    monkeypatch.setattr(request_module, "sample", failing(request_module.sample))
    with pytest.raises(Boom):
        next(stream)
    assert engine.stats().counters.finished == {"cancelled": 1}
    assert tokens_by_request(run(engine)) == {other: EXPECTED[0]}
    assert_no_block_is_lost(engine)


# --- logits that are no numbers --------------------------------------------------------------------


def break_logits(monkeypatch, at_call, row, number):
    """In the `at_call`-th sampling, one logit of one row becomes `number`."""
    sample, calls = request_module.sample, iter(range(1000))

    def broken(logits, *args):
        if next(calls) == at_call:
            logits[row, 3] = number
        return sample(logits, *args)

    monkeypatch.setattr(request_module, "sample", broken)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("num_made", [0, 1, 4])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_broken_logits_end_only_their_own_request(monkeypatch, broken, num_made, number):
    engine = make_engine()
    break_logits(monkeypatch, num_made, broken, number)
    request_ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = run(engine)
    completions = {o.request_id: o.completion for o in outputs if o.completion}
    failed = completions.pop(request_ids[broken])
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "the model's logits are not finite numbers"
    assert failed.token_ids == EXPECTED[broken][:num_made]
    assert failed.text == bytes(failed.token_ids).decode(errors="replace")
    assert [o.token_id for o in outputs if o.completion is failed] == [None]
    others = [i for i in range(3) if i != broken]
    assert [completions[request_ids[i]].token_ids for i in others] == [EXPECTED[i] for i in others]
    counters = engine.stats().counters
    assert counters.finished == {"error": 1, "length": 2}
    assert counters.generated_tokens == 2 * 8 + num_made
    assert counters.decoded_tokens == 2 * 7 + max(0, num_made - 1)  # a token that is none is not counted
    assert_no_block_is_lost(engine)


def test_a_prompt_with_broken_logits_is_not_kept(monkeypatch):
    engine = make_engine()
    break_logits(monkeypatch, 0, 0, torch.nan)
    assert engine.generate([PROMPTS[0]], GREEDY)[0].finish_reason is FinishReason.ERROR
    assert engine.stats().prefix_entries == 0
    assert tokens_of(engine.generate([PROMPTS[0]], GREEDY)) == EXPECTED[:1]


def test_a_stream_tells_of_broken_logits_in_its_last_piece(monkeypatch):
    engine = make_engine()
    break_logits(monkeypatch, 3, 0, torch.nan)
    *chunks, last = engine.stream(PROMPTS[0], GREEDY)
    assert len(chunks) == 3 and last.token_ids == ()
    assert last.completion.finish_reason is FinishReason.ERROR
    assert "".join(c.text for c in [*chunks, last]) == last.completion.text


@pytest.mark.slow
@every_engine
def test_a_position_without_numbers_ends_only_a_text_that_reaches_it(options):
    """A shorter prompt beside it has pads there."""
    model = copy.deepcopy(small_model())
    with torch.no_grad():
        model.network.wpe.weight[23] = torch.nan
    engine = make_engine(model, options)
    for short in (PROMPTS[0], (*PROMPTS[0], 9)):  # the second one with the first in the cache
        fine, broken = engine.generate([short, range(30, 60)], GREEDY)
        assert fine.token_ids == tokens_alone(short, GREEDY)
        assert (fine.finish_reason, broken.finish_reason) == (FinishReason.LENGTH, FinishReason.ERROR)
