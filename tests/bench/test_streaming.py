"""The streaming benchmark: threads and tasks are served the same tokens, and what goes wrong is told."""

import asyncio
from types import SimpleNamespace

import pytest
from helpers import Boom, failing, make_engine, small_model

from labkit import CacheConfig, Completion, FinishReason, SamplingParams, SchedulerConfig
from labkit.bench.streaming import CONSUMERS, Consumer, felt_latency, run_streaming
from labkit.bench.workload import Workload
from labkit.engine import Timing
from labkit.errors import StreamError
from labkit.ladder import LADDER
from labkit.model.tokenizer import WordTokenizer

pytestmark = pytest.mark.slow

PROMPTS = ((1, 2, 3), (5, 6), (7,), (9, 9))


def workload(**settings):
    return Workload.alike(
        small_model(),
        **{"prompts": PROMPTS, "max_new_tokens": 9, "device": "cpu", **settings},
        scheduler=SchedulerConfig(max_batch_size=4),
        cache=CacheConfig(block_size=4, prefix_cache=False),
    )


@pytest.fixture(params=CONSUMERS)
def consumers(request):
    return request.param


def test_every_request_gets_all_its_tokens(consumers):
    work = workload()
    served = run_streaming(work, work.make_engine(LADDER["00"].options), consumers=consumers)
    assert [len(each.completion.token_ids) for each in served] == [9] * 4
    assert [len(each.completion.prompt_token_ids) for each in served] == [3, 2, 1, 2]
    felt = felt_latency(served)
    assert (len(felt.itl), len(felt.ttft), len(felt.tpot)) == (4 * 8, 4, 4)
    assert min(felt.ttft) > 0 and felt.tokens == 36
    assert all(wait <= ttft for wait, ttft in zip(felt.queue_wait, felt.ttft, strict=True))


def test_latency_is_the_consumers_not_the_engines():
    """Every moment is when the consumer had its chunk; only the wait in the queue is the engine's to tell."""
    timing = Timing(100.0, 101.5, (102.0, 102.5, 103.0, 103.5))  # by the engine
    made = Completion(0, (1,), (5, 6, 7, 8), FinishReason.LENGTH, timing, WordTokenizer(9, None))
    consumer = Consumer(SimpleNamespace(submitted=100.0), [110.0, 116.0], made)
    felt = felt_latency([consumer])
    assert (felt.ttft, felt.queue_wait, felt.latency, felt.span) == ((10.0,), (1.5,), (16.0,), 16.0)
    assert (felt.tpot, felt.itl, felt.tokens) == ((6.0 / 3,), (6.0,), 4)


def test_what_ends_a_stream_early_is_raised_and_all_else_ends(consumers):
    engine = make_engine(prefix_cache=False)
    engine.step = failing(engine.step, 3)
    with pytest.raises(StreamError, match="a step of the engine failed") as caught:
        run_streaming(workload(max_new_tokens=50), engine, consumers=consumers)
    assert isinstance(caught.value.__cause__, Boom)
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.free_blocks) == (0, 0, stats.blocks_per_layer)
    engine.step = type(engine).step.__get__(engine)
    assert len(engine.generate([(1, 2)], SamplingParams(3))[0].token_ids) == 3


def test_tasks_are_served_where_an_event_loop_runs_already_as_in_a_notebook():
    async def cell():
        work = workload()
        return run_streaming(work, work.make_engine(LADDER["00"].options))

    assert [len(each.completion.token_ids) for each in asyncio.run(cell())] == [9] * 4
