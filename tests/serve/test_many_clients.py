"""Many clients at once, well and badly behaved: nobody's answer is lost, and no block."""

import asyncio
import json
import random
from urllib.parse import urlsplit

import pytest
from helpers import assert_no_block_is_lost, make_engine
from http_server import NAME, serving

from labkit import LADDER, SamplingParams

PROMPTS = [[1, 2, 3], [7], list(range(20, 33)), [9, 9]]
NUM_CLIENTS = 90


async def send(url, body):
    """A connection on which a request was sent."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n")
    writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def stays(url, body, expected, pause):
    """Reads the whole answer, now and then slowly."""
    reader, writer = await send(url, body)
    read = b""
    while part := await reader.read(200 if pause else 65536):
        read += part
        await asyncio.sleep(pause)
    writer.close()
    frames = [line[6:] for line in read.split(b"\n") if line.startswith(b"data: ")]
    assert frames.pop() == b"[DONE]"
    assert "".join(json.loads(frame)["choices"][0]["text"] for frame in frames) == expected


async def leaves(url, body, after):
    """Goes away: before the answer, or in the middle of it."""
    reader, writer = await send(url, body)
    if after:
        await reader.readuntil(b"data: ")
    writer.transport.abort()


async def breaks_off(url, body):
    """Sends what is no request, and goes."""
    _, writer = await send(url, body)
    writer.transport.abort()


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["00", "14"])
def test_a_third_leaves_and_the_others_have_their_answers(rung):
    options, params = LADDER[rung].options, SamplingParams(12)
    alone = make_engine(options=options, prefix_cache=False)
    expected = [alone.generate([prompt], params)[0].text for prompt in PROMPTS]
    numbers = random.Random(0)

    async def client(url, number):
        await asyncio.sleep(numbers.random())
        which = number % len(PROMPTS)
        asked = {"model": NAME, "prompt": PROMPTS[which], "max_tokens": 12, "temperature": 0}
        asked["stream"] = number % 9 != 0  # who leaves before the answer has asked for it in one piece
        body = json.dumps(asked).encode()
        match number % 9:
            case 0 | 1:
                await leaves(url, body, after=number % 9)
            case 2:
                await breaks_off(url, body[:-1])  # which is no JSON
            case 3:
                await stays(url, body, expected[which], pause=0.001)
            case _:
                await stays(url, body, expected[which], pause=0)

    async def all_of_them(url):
        await asyncio.gather(*(client(url, number) for number in range(NUM_CLIENTS)))

    with serving(make_engine(options=options, max_blocks_per_layer=64)) as door:
        asyncio.run(all_of_them(door.url))
        streaming = door.streaming
    assert streaming.num_unfinished == 0 and not door.engine.has_work
    assert_no_block_is_lost(door.engine)
