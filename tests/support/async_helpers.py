"""Streams on an event loop: for tasks, and for a thread that reads them as if they were its own."""

import asyncio
import threading
from functools import partial

import pytest
from streaming_helpers import TIMEOUT

from labkit.engine import StreamingServer


async def read(stream):
    return [chunk async for chunk in stream]


async def submit_and_read_all(server, prompts, each_params):
    """Their chunks, all read at once on one event loop."""
    streams = [server.submit_async(*each) for each in zip(prompts, each_params, strict=True)]
    return await asyncio.gather(*map(read, streams))


class OnALoop:
    """Submits and reads on an event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT)

    def submit(self, server: StreamingServer, *request: object) -> "BlockingStream":
        async def submit():
            return server.submit_async(*request)

        return BlockingStream(self, self.run(submit()))


class BlockingStream:
    """An AsyncTokenStream whose caller waits, as that of a TokenStream does."""

    def __init__(self, on: OnALoop, stream) -> None:
        self._on, self._stream = on, stream

    def __iter__(self):
        return self

    def __next__(self):
        async def next_chunk(stream=self._stream):
            return await anext(stream, None)

        chunk = self._on.run(next_chunk())
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        async def close(stream=self._stream):
            stream.close()

        self._on.run(close())

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.close()


@pytest.fixture(params=["by threads", "on a loop"])
def submit_to(request):
    """A function: the `submit` of a server, for threads, or for tasks of an event loop."""
    if request.param == "by threads":
        yield lambda server: server.submit
        return
    on = OnALoop()
    yield lambda server: partial(on.submit, server)
    on.stop()
