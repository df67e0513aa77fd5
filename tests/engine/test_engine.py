"""The engine: the tokens of a request are its own, whatever happens around it."""

import pickle
import time

import pytest
from helpers import GREEDY, make_engine, run, tokens_alone, tokens_of

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine import StepOutput, StepOutputs

# --- tokens ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_completion_can_be_sent_to_another_process(tiny):
    """Its text is put together when it is asked for, there too."""
    engine = InferenceEngine(tiny, device="cpu", cache=CacheConfig(block_size=16))
    (completion,) = engine.generate(["O Romeo"], GREEDY)
    received = pickle.loads(pickle.dumps(completion))
    assert received == completion
    assert received.text == completion.text == tiny.tokenizer.decode(completion.token_ids) != ""


def test_without_a_seed_each_request_draws_its_own_tokens():
    params = SamplingParams(8, temperature=2.0)
    assert len(set(tokens_of(make_engine().generate([(1, 2)] * 4, params)))) == 4


# --- step by step ----------------------------------------------------------------------------------


def test_prefill_first_lets_the_running_wait_for_a_newcomer():
    engine = make_engine()
    old = engine.add_request((1, 2), GREEDY)
    assert [o.request_id for o in engine.step()] == [old]
    new = engine.add_request((3, 4), GREEDY)
    assert [o.request_id for o in engine.step()] == [new]
    assert [o.request_id for o in engine.step()] == [old, new]


def test_decode_first_gives_every_running_request_a_token_each_step():
    engine = make_engine(decode_first=True, prefill_max_batch_size=1, prefix_cache=False)
    request_ids = []
    for _ in range(4):
        outputs = engine.step()
        assert [o.request_id for o in outputs] == request_ids
        request_ids.append(engine.add_request((3, 4), GREEDY))
        outputs = engine.step()
        assert [o.request_id for o in outputs] == request_ids


# --- streams ---------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_what_other_steps_made():
    engine = make_engine()
    stream = engine.stream((1, 2, 3), GREEDY)
    chunks = [next(stream)]
    engine.generate([(5, 6)], SamplingParams(3))
    chunks.append(next(stream))
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 3]
    engine.generate([(5, 6)], GREEDY)  # ends the streamed request, too
    chunks += stream
    assert sum((chunk.token_ids for chunk in chunks), ()) == tokens_alone((1, 2, 3), GREEDY)
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].completion.text


def test_a_stream_that_is_never_started_queues_nothing():
    engine = make_engine()
    engine.stream((1, 2, 3), GREEDY)
    assert not engine.has_work


# --- small pools -----------------------------------------------------------------------------------


def test_cached_prompts_are_evicted_before_anybody_is_preempted():
    engine = make_engine(block_size=2, max_blocks_per_layer=12)
    engine.generate([(50, 51, 52), (60, 61, 62), (70, 71)], SamplingParams(1))
    assert engine.stats().free_blocks == 12 - 5
    engine.add_request((1, 2, 3), GREEDY)
    engine.add_request((4, 5, 6), GREEDY)
    run(engine)
    stats = engine.stats()
    assert stats.prefix_evictions > 0 and stats.counters.preemptions == 0


# --- what it tells of itself -----------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "written"), [("00", {}), ("05", {"identity_pos": 4, "full_batch": 4})])
def test_stats_count_what_was_done(rung, written):
    engine = make_engine(options=LADDER[rung].options, max_batch_size=2, prefix_cache=False)
    for prompt in [(1, 2, 3), (4, 5, 6, 7, 8), (9,)]:
        engine.add_request(prompt, SamplingParams(3))
    engine.step()
    early = engine.stats()
    assert (early.waiting, early.running) == (1, 2)
    assert (early.free_blocks, early.blocks_per_layer) == (32 - 3, 32)  # 2 sequences of 64 tokens
    run(engine)
    assert (early.counters.steps, early.counters.finished) == (1, {})  # it stays what it was
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.free_blocks) == (0, 0, 32)
    counters = stats.counters
    assert (counters.steps, counters.decode_steps) == (6, 4)  # prefill, decode twice; and again
    assert (counters.prefill_tokens, counters.reused_tokens, counters.generated_tokens) == (9, 0, 9)
    assert (counters.decoded_tokens, counters.preemptions, counters.finished) == (6, 0, {"length": 3})
    assert counters.prefill_seconds > 0 and counters.decode_seconds > 0
    # In each of two layers: six decoded tokens, of which the fifth of the first sequence opens a block.
    assert stats.append_paths == {"boundary": 2, "in_place": 10} | written


def test_times_are_in_order_and_include_the_queue():
    engine = make_engine(max_batch_size=1)
    before = time.perf_counter()
    first, second = (engine.add_request(p, GREEDY) for p in ((1, 2, 3), tuple(range(20, 33))))
    added = time.perf_counter()
    timing = {o.request_id: o.completion.timing for o in run(engine) if o.completion}
    for t in timing.values():
        moments = [before, t.arrived, added, t.admitted, *t.tokens, time.perf_counter()]
        assert moments == sorted(moments)
        assert len(t.tokens) == GREEDY.max_new_tokens
    assert timing[second].admitted >= timing[first].tokens[-1]  # so its TTFT has the first one's whole time


def test_admitted_is_the_first_admission_also_after_a_preemption():
    engine = make_engine(block_size=2, max_blocks_per_layer=5, prefix_cache=False)
    for _ in range(2):
        engine.add_request((1, 2, 3), GREEDY)
    timing = [o.completion.timing for o in run(engine) if o.completion]
    assert engine.stats().counters.preemptions > 0
    assert all(t.admitted <= t.tokens[0] for t in timing)


def test_what_is_not_asked_for_is_as_the_docstrings_say():
    assert CacheConfig() == CacheConfig(64, None, True, 256, None)
    assert SchedulerConfig() == SchedulerConfig(None, None, None, "fifo", 32, False, 512)
    assert SamplingParams() == SamplingParams(16, 0.0, 0, 1.0, None, True, 0.0, ())


# --- what a step hands out ---------------------------------------------------------------------------


def test_outputs_are_a_sequence_of_step_outputs():
    outputs = StepOutputs()
    assert not outputs and list(outputs) == [] and outputs.completions == []
    (end,) = make_engine().generate([(1, 2, 3)], GREEDY)
    outputs.extend([1, 2], [10, 20])
    outputs.append(1, 11, end)
    outputs.append(2, None, None)
    expected = [
        StepOutput(1, 10, None),
        StepOutput(2, 20, None),
        StepOutput(1, 11, end),
        StepOutput(2, None, None),
    ]
    assert list(outputs) == expected and outputs
    assert len(outputs) == 4 and [outputs[i] for i in range(-4, 4)] == expected * 2
    assert outputs[1:3] == expected[1:3] and outputs[::-1] == expected[::-1]
    assert outputs.completions == [end]
    assert outputs.request_ids == [1, 2, 1, 2] and outputs.token_ids == [10, 20, 11, None]
    assert repr(outputs) == repr(expected)
    with pytest.raises(IndexError):
        outputs[4]
    without_1, without_2 = outputs.without(1), outputs.without(2)
    assert list(without_1) == [expected[1], expected[3]] and without_1.completions == []
    assert list(without_2) == [expected[0], expected[2]] and without_2.completions == [end]
    assert list(outputs) == expected  # as before
