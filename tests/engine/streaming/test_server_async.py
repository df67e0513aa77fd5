"""The server on an event loop: it needs one, and may be closed on it."""

import asyncio

import pytest
from async_helpers import read
from helpers import GREEDY, tokens_alone
from streaming_helpers import LONG, hold, serving, tokens_in

from labkit.errors import StreamError


def test_without_an_event_loop_a_request_is_refused_and_takes_no_room():
    with serving(max_inflight_requests=1) as server:
        for _ in range(2):
            with pytest.raises(StreamError, match="no event loop runs in this thread: call submit_async in"):
                server.submit_async((1, 2, 3), GREEDY)
        assert tokens_in(list(server.submit((1, 2, 3), GREEDY))) == tokens_alone((1, 2, 3), GREEDY)


def test_a_task_may_close_its_own_server():
    async def close(server):
        hold(server)
        stream = server.submit_async((1, 2, 3), LONG)
        await anext(stream)
        server.close()
        with pytest.raises(StreamError, match="the server was closed when this request had"):
            await read(stream)
        with pytest.raises(StreamError, match="the server is closed and takes no more requests"):
            server.submit_async((1, 2, 3), GREEDY)

    with serving() as server:
        asyncio.run(close(server))
    assert server.engine.stats().counters.finished == {"cancelled": 1}
