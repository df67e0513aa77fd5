"""Readers over HTTP: what they note of a reply."""

import asyncio

import pytest
from helpers import make_engine
from http_server import NAME, serving

from labkit.bench.http_readers import SocketReader, read_all

FRAMES = (
    b'data: {"choices":[{"text":"To be"}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n',
)
ASKED = {"model": NAME, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}


def test_a_reply_has_ended_with_its_last_bytes_however_they_come():
    """Not with the connection, which is kept for the next request."""

    async def read():
        reader = SocketReader({})
        reader.connection_made(asyncio.Transport())
        reader.sent = 0.0
        for data in (b"HTTP/1.1 200 OK\r\n\r\n", *FRAMES, b"data: [DONE]\n\n\r", b"\n0\r\n\r"):
            reader.data_received(data)
        assert not reader.ended.done()
        reader.data_received(b"\n")
        await reader.ended
        return reader.noted()

    noted = asyncio.run(read())
    assert (noted["tokens"], len(noted["times"]), noted["error"]) == (2, 1, None)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["socket", "openai"])
def test_either_client_reads_all_tokens_and_says_what_was_refused(client):
    bodies = [ASKED | {"prompt": [1, 2, 3], "max_tokens": tokens} for tokens in (5, 7, 0)]
    with serving(make_engine(max_blocks_per_layer=64)) as door:
        port = int(door.url.rpartition(":")[2])
        *whole, refused = asyncio.run(read_all(port, bodies, [0.0, 0.0, 0.01], client))["readers"]
    assert [(each["tokens"], each["error"]) for each in whole] == [(5, None), (7, None)]
    for each in whole:
        assert 1 <= len(each["times"]) <= each["tokens"]
        assert sorted([each["sent"], *each["times"]]) == [each["sent"], *each["times"]]
    assert "max_tokens" in str(refused["error"]) and not refused["times"]
