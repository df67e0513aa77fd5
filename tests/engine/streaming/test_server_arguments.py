"""What a server refuses, and what that leaves behind."""

import asyncio

import pytest
from bad_values import refused
from helpers import GREEDY, make_engine
from streaming_helpers import labkit_threads

from labkit.engine import StreamingServer
from labkit.errors import RequestError


@pytest.fixture(scope="module")
def server():
    with StreamingServer(make_engine(), max_inflight_requests=3) as server:
        yield server
    assert labkit_threads() == []


@pytest.mark.parametrize("way", ["submit", "submit_async"])
def test_a_refused_request_gives_its_room_back(server, way):
    """Three requests may be unfinished: were a refused one kept, the fourth would be OverloadedError."""

    async def submit() -> None:
        getattr(server, way)([], GREEDY)

    for _ in range(4):
        with refused(RequestError, "prompt"):
            asyncio.run(submit())
    assert not server.engine.has_work


@pytest.mark.parametrize("text", ["a" * 10**6, "", "a\ud800"])
def test_a_text_that_another_thread_encodes_is_refused_in_the_stream(text):
    with StreamingServer(make_engine(), tokenize_workers=1) as server:
        stream = server.submit(text, GREEDY)
        with refused(RequestError, "prompt"):
            next(stream)
