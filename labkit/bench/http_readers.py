"""Readers of streams over HTTP, in a process of their own: `python -m labkit.bench.http_readers`.

Each line of standard input asks for a run, {"port", "bodies", "times", "client"}; a line of standard output
tells what came. A body is sent so many seconds after the run's beginning.
The connections are open before a run, as those of a client are that keeps them. `socket` notes the time of
each arrival and nothing more, and reads what it said afterwards; `openai` is that package's own client, which
reads each frame as it comes.
"""

import asyncio
import gc
import json
import re
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

import openai

FRAME = re.compile(rb"data: (.*?)\n\n")  # a frame is JSON in one line
END = b"\r\n0\r\n\r\n"  # of a reply in chunks
MOST_SECONDS = 60  # after the last request; who has not been told all by then is told so
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class SocketReader(asyncio.Protocol):
    """One connection: a request is sent, and what arrives is kept until the reply ends."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = json.dumps(body).encode()
        self.times: list[float] = []
        self.pieces: list[bytes] = []
        self._last = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def send(self) -> None:
        """Ask; the clock starts."""
        self.sent = time.perf_counter()
        self._transport.write(REQUEST + f"Content-Length: {len(self._body)}\r\n\r\n".encode() + self._body)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.pieces.append(data)
        self._last = (self._last + data)[-len(END) :]  # the end may come in two pieces
        if self._last == END and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def noted(self) -> dict[str, Any]:
        """When the request was sent, when each frame with text came, how many tokens there were, and what
        went wrong."""
        raw, ends = b"".join(self.pieces), list(accumulate(map(len, self.pieces)))
        times, tokens, error = [], 0, None
        for found in FRAME.finditer(raw):
            if found[1] == b"[DONE]":
                continue
            frame = json.loads(found[1])
            error = error or frame.get("error")
            if usage := frame.get("usage"):
                tokens = usage["completion_tokens"]
            if any(choice["text"] for choice in frame.get("choices", ())):
                times.append(self.times[bisect_left(ends, found.end())])
        if not raw.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in raw:
            error = error or raw[-500:].decode(errors="replace") or "the connection was closed"
        return {"sent": self.sent, "times": times, "tokens": tokens, "error": error}


class OpenAIReader:
    """One stream of the `openai` package's client, whose connections its readers share."""

    def __init__(self, client: openai.AsyncOpenAI, body: dict[str, Any]) -> None:
        self._client = client
        self._body = {**body, "extra_body": {"ignore_eos": body["ignore_eos"]}}  # which OpenAI does not know
        del self._body["ignore_eos"]
        self.times: list[float] = []
        self.tokens, self.error = 0, "it was not read to its end"

    def send(self) -> None:
        """Ask; the clock starts."""
        self.sent = time.perf_counter()
        self.ended = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for chunk in await self._client.completions.create(**self._body):
                if any(choice.text for choice in chunk.choices):
                    self.times.append(time.perf_counter())
                if chunk.usage:
                    self.tokens = chunk.usage.completion_tokens
            self.error = ""
        except openai.OpenAIError as error:
            self.error = repr(error)

    def noted(self) -> dict[str, Any]:
        """As a socket's reader has it."""
        return {"sent": self.sent, "times": self.times, "tokens": self.tokens, "error": self.error or None}


@asynccontextmanager
async def over_sockets(port: int, bodies: list[Any]) -> AsyncIterator[list[SocketReader]]:
    """A reader for each body, on a connection of its own."""
    loop = asyncio.get_running_loop()
    readers = [SocketReader(body) for body in bodies]
    opened = [await loop.create_connection(lambda each=each: each, "127.0.0.1", port) for each in readers]
    yield readers
    for transport, _ in opened:
        transport.close()


@asynccontextmanager
async def over_openai(port: int, bodies: list[Any]) -> AsyncIterator[list[OpenAIReader]]:
    """A reader for each body, all of one client that has as many connections open."""
    url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await asyncio.gather(*(client.models.list() for _ in bodies))
        yield [OpenAIReader(client, body) for body in bodies]


CLIENTS = {"socket": over_sockets, "openai": over_openai}


async def read_all(port: int, bodies: list[Any], times: list[float], client: str) -> dict[str, Any]:
    """One reader for each body: what each noted, and the share of a core that this took."""
    async with CLIENTS[client](port, bodies) as readers:
        gc.collect()
        gc.disable()  # or it would look through all that has come, in the middle of it
        started, cpu = time.perf_counter(), time.process_time()
        for reader, at in zip(readers, times, strict=True):
            if (wait := started + at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            reader.send()
        await asyncio.wait([reader.ended for reader in readers], timeout=MOST_SECONDS)
        busy = (time.process_time() - cpu) / (time.perf_counter() - started)
        gc.enable()
    return {"busy": busy, "readers": [reader.noted() for reader in readers]}


def main() -> None:
    """Answer each line until there is none."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(read_all(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
