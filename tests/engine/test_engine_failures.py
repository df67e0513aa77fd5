"""When something inside a step is wrong: its own request ends, and everybody else goes on."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import (
    GREEDY,
    ByteTokenizer,
    assert_no_block_is_lost,
    every_engine,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_of,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS

from labkit import LADDER, FinishReason, LanguageModel
from labkit.engine import request as request_module


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
