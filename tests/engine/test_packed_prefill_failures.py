"""Chunks of prompts whose launch, or whose first tokens' read, fails: nothing is lost."""

import pytest
from chunked_engines import EACH_PARAMS, EXPECTED, PROMPTS, in_chunks_of, record_chunks
from helpers import Boom, assert_no_block_is_lost, failing, make_engine, run, tokens_alone, tokens_by_request

from labkit import LADDER, SamplingParams
from labkit.engine.step.chunk import ChunkInFlight

PLACES = {
    "making the chunk": lambda engine: (engine.prefill, "make_chunk"),
    "sending it": lambda engine: (engine.prefill.chunk_step.staging, "send"),
    "attention": lambda engine: (engine.prefill.chunk_step.device_step.attention, "attention"),
    "storing keys and values": lambda engine: (engine.prefill.chunk_step.device_step.attention, "kv_append"),
    "drawing first tokens": lambda engine: (engine.prefill.chunk_step.sampler, "sample"),
    "copying them": lambda engine: (engine.prefill.chunk_step.pinned_tokens, "start_copy"),
    "reserving a prompt's room": lambda engine: (engine.kv_manager, "allocate_block"),
}


def books(engine):
    """Free blocks; who waits, joins and runs; and how far the prompts of those who join are."""
    scheduler = engine.scheduler
    return (
        engine.stats().free_blocks,
        list(scheduler.waiting),
        [(r, each.num_launched, each.is_finished) for r, each in scheduler.joining.items()],
        [(r, session.num_tokens) for r, session in scheduler.running.items()],
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
@pytest.mark.parametrize("num_ahead", [1, 3])
def test_a_chunk_whose_launch_fails_leaves_all_as_before(monkeypatch, place, num_steps, num_ahead):
    engine = in_chunks_of(8, num_ahead, prefix_cache=False)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    owner, name = PLACES[place](engine)
    monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    for _ in range(4):  # until a chunk finishes a prompt, or takes a block
        try:
            before = books(engine)
            outputs += engine.step()
        except Boom:
            break
    else:
        raise AssertionError("nothing failed")
    after = books(engine)
    if place == "reserving a prompt's room" and after != before:  # it was a decode step's block
        assert after[1] == before[1] or len(after[2]) > len(before[2])
    else:
        assert after == before
    engine.check_integrity()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@pytest.mark.parametrize("at_call", range(3))
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("num_ahead", [1, 3])
def test_first_tokens_that_cannot_be_read_put_all_who_join_back_in_order(
    monkeypatch, at_call, prefix_cache, num_ahead
):
    engine = in_chunks_of(8, num_ahead, prefix_cache=prefix_cache)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
    monkeypatch.setattr(ChunkInFlight, "read", failing(ChunkInFlight.read, at_call))
    outputs = []
    with pytest.raises(Boom):
        while True:
            outputs += engine.step()
    scheduler = engine.scheduler
    assert not scheduler.joining
    assert [r.request_id for r in scheduler.requests] == ids
    engine.check_integrity()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize(("num_ahead", "num_lost"), [(1, 16), (3, 32)])
def test_chunks_behind_first_tokens_that_cannot_be_read_count_for_nothing(monkeypatch, num_ahead, num_lost):
    """All chunks are given up, and their prompts are computed again: only that is counted."""
    engine = in_chunks_of(8, num_ahead, prefix_cache=False)
    counts = record_chunks(engine)
    for each in zip(PROMPTS, EACH_PARAMS, strict=True):
        engine.add_request(*each)
    monkeypatch.setattr(ChunkInFlight, "read", failing(ChunkInFlight.read))
    engine.step()
    with pytest.raises(Boom):
        engine.step()
    assert not engine.prefill.in_flight
    run(engine)
    num_prompt_tokens = sum(map(len, PROMPTS))
    assert sum(map(sum, counts)) == num_lost + num_prompt_tokens
    assert engine.stats().counters.prefill_tokens == num_prompt_tokens


@pytest.mark.parametrize("at_call", range(4))
def test_a_chunk_that_is_not_kept_leaves_the_first_tokens_of_the_chunk_before(monkeypatch, at_call):
    """It was launched, and comes once more: its tokens lay in one buffer, and the next ones went over those
    of the chunk before, which were not read yet."""
    one_token = SamplingParams(1, stop_on_eos=False)
    prompts = ((1,), (1, 2, 3), (5, 6), (7, 8, 9))
    budget = {"prefill_max_batch_size": 1, "prefill_max_tokens": 2, "prefill_chunk_tokens": 1}
    engine = make_engine(options=LADDER["14"].options, block_size=1, max_batch_size=2, **budget)
    request_ids = [engine.add_request(prompt, one_token) for prompt in prompts]
    insert = failing(engine.prefix_cache.insert, at_call)
    monkeypatch.setattr(engine.prefix_cache, "insert", insert)
    outputs = []
    with pytest.raises(Boom):
        while engine.has_work:
            outputs += engine.step()
    made = tokens_by_request(outputs + run(engine))
    assert [made[i] for i in request_ids] == [tokens_alone(prompt, one_token) for prompt in prompts]
