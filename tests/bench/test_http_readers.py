"""Readers over HTTP: what they note of a reply."""

import asyncio

from labkit.bench.http_readers import Reader

FRAMES = (
    b'data: {"choices":[{"text":"To be"}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n',
)


def test_a_reply_has_ended_with_its_last_bytes_however_they_come():
    """Not with the connection, which is kept for the next request."""

    async def read():
        reader = Reader()
        reader.connection_made(asyncio.Transport())
        reader.sent = 0.0
        for data in (b"HTTP/1.1 200 OK\r\n\r\n", *FRAMES, b"data: [DONE]\n\n\r", b"\n0\r\n\r"):
            reader.data_received(data)
        assert not reader.ended.done()
        reader.data_received(b"\n")
        await reader.ended
        return reader.told()

    told = asyncio.run(read())
    assert (told["tokens"], len(told["times"]), told["error"]) == (2, 1, None)
