"""A server under load: it starts and closes among its clients, and readers are slow."""

import random
import time
from collections.abc import Callable
from functools import partial

import pytest
from async_helpers import OnALoop
from helpers import ENGINES, GREEDY, assert_no_block_is_lost, make_engine, tokens_alone
from streaming_helpers import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PROMPTS,
    TIMEOUT,
    labkit_threads,
    read,
    serving,
    start,
    tokens_in,
    wait_for,
)

from labkit import SamplingParams
from labkit.engine import StreamingServer
from labkit.errors import OverloadedError, StreamError

pytestmark = pytest.mark.slow

RUNGS = ("00", "05", "07", "10", "14")


def judge(which: int, token_ids: tuple[int, ...], is_complete: bool) -> str:
    """A stream gives its request's tokens, each once and in order; all of them, or it says why not."""
    assert token_ids == EXPECTED[which][: len(token_ids)], "lost or doubled tokens"
    assert not is_complete or token_ids == EXPECTED[which]
    return "complete" if is_complete else "cut short"


def client(submit: Callable, seed: int) -> list[str]:
    """Asks again and again until the server is closed; reads at random moments, and sometimes leaves."""
    dice, outcomes = random.Random(seed), []
    while True:
        which, received, is_complete = dice.randrange(len(PROMPTS)), (), False
        leaves_after = dice.choice([1, 2, 99, 99])
        try:
            with submit(PROMPTS[which], EACH_PARAMS[which]) as stream:
                for _, chunk in zip(range(leaves_after), stream, strict=False):
                    received += chunk.token_ids
                    is_complete = chunk.completion is not None
                    time.sleep(dice.choice([0, 0, 0.002]))
        except OverloadedError:
            time.sleep(0.001)
            continue
        except StreamError as error:
            assert "closed" in str(error) and not is_complete
            return [*outcomes, judge(which, received, False)]
        outcomes.append(judge(which, received, is_complete))


@pytest.mark.parametrize("rung", RUNGS)
def test_a_server_is_closed_and_another_started_in_the_middle_of_everything(rung):
    """Threads and tasks, slow ones and ones that leave: each gets its tokens once, or is told."""
    engine = make_engine(options=ENGINES[rung], max_batch_size=4, max_blocks_per_layer=14)
    outcomes, loops = [], [OnALoop(), OnALoop()]
    for round_number in range(3):
        server = StreamingServer(engine, max_inflight_requests=6, stream_interval=2)
        ways = [*[server.submit] * 4, *[partial(loop.submit, server) for loop in loops]]
        clients = [start(client, submit, 10 * round_number + i) for i, submit in enumerate(ways)]
        steps = engine.stats().counters.steps
        wait_for(lambda steps=steps: engine.stats().counters.steps > steps + 25)
        closing = [start(server.close) for _ in range(2)]
        for each in closing:
            each.result(TIMEOUT)
        for each in clients:
            outcomes += each.result(TIMEOUT)
        assert labkit_threads() == []
        assert_no_block_is_lost(engine)
    for loop in loops:
        loop.stop()
    assert outcomes.count("complete") > 5
    assert engine.generate([(1, 2, 3)], GREEDY)[0].token_ids == tokens_alone((1, 2, 3), GREEDY)


def test_a_consumer_that_does_not_read_keeps_no_more_than_its_own_tokens():
    """A stream's queue is bounded by its request: a chunk for each `stream_interval` tokens."""
    with serving(make_engine(), stream_interval=3) as server:
        stream = server.submit((1, 2, 3), SamplingParams(50))
        others = [tokens_in(read(server.submit((5, 6), LONG))) for _ in range(3)]
        wait_for(lambda: not server.engine.has_work)
        assert stream._queue.qsize() == -(-50 // 3)
        assert others == [tokens_alone((5, 6), LONG)] * 3  # and it held nobody up
        assert tokens_in(read(stream)) == tokens_alone((1, 2, 3), SamplingParams(50))
