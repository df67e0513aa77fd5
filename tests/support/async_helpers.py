"""What the tests of streams on an event loop share."""

import asyncio

import pytest

from labkit.errors import RequestError, StreamError


async def read(stream):
    return [chunk async for chunk in stream]


async def read_until_error(stream):
    """The tokens of a stream that is cut short, and its error."""
    token_ids = ()
    with pytest.raises((StreamError, RequestError)) as caught:
        async for chunk in stream:
            assert chunk.completion is None
            token_ids += chunk.token_ids
    return token_ids, caught.value


async def submit_and_read_all(server, prompts, each_params):
    """Their chunks, all read at once on one event loop."""
    streams = [server.submit_async(*each) for each in zip(prompts, each_params, strict=True)]
    return await asyncio.gather(*map(read, streams))
