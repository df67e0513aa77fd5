"""The counters of an engine, and that a snapshot stays what it was."""

from helpers import GREEDY, make_engine, run

from labkit import SamplingParams
from labkit.engine.stats import EngineCounters


def test_counters_begin_at_nothing_and_share_nothing():
    first, second = EngineCounters(), EngineCounters()
    first.finished["stop"] = 1
    assert (second.steps, second.generated_tokens, second.finished) == (0, 0, {})


def test_a_snapshot_is_of_its_moment():
    engine = make_engine(prefix_cache=False)
    engine.add_request((1, 2, 3), GREEDY)
    engine.add_request((4, 5), SamplingParams(3, stop_on_eos=False))
    before = engine.stats()
    assert (before.waiting, before.running, before.counters.steps) == (2, 0, 0)
    engine.step()
    after_prefill = engine.stats()
    assert (after_prefill.waiting, after_prefill.running) == (0, 2)
    assert after_prefill.free_blocks == after_prefill.blocks_per_layer - 2
    run(engine)
    counters = engine.stats().counters
    assert (counters.prefill_tokens, counters.generated_tokens, counters.decoded_tokens) == (5, 11, 9)
    assert (counters.decode_steps, counters.finished) == (7, {"length": 2})
    assert (before.counters.steps, after_prefill.counters.steps) == (0, 1)
    assert before.counters.finished == {}
