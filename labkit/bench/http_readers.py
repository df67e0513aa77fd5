"""Readers of streams over HTTP, in a process of their own: `python -m labkit.bench.http_readers`.

Each line of standard input asks for a run, {"port", "bodies", "times"}; a line of standard output tells what
came. A body is sent so many seconds after the run's beginning.
The connections are open before a run, as those of a client are that keeps them. While it lasts, each arrival
is noted with its time and nothing more; what it said is read afterwards.
"""

import asyncio
import gc
import json
import re
import sys
import time
from bisect import bisect_left
from itertools import accumulate
from typing import Any

FRAME = re.compile(rb"data: (.*?)\n\n")  # a frame is JSON in one line
END = b"\r\n0\r\n\r\n"  # of a reply in chunks
MOST_SECONDS = 60  # after the last request; who has not been told all by then is told so
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Reader(asyncio.Protocol):
    """One connection: a request is sent, and what arrives is kept until the reply ends."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.pieces: list[bytes] = []
        self._last = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def send(self, body: bytes) -> None:
        """Ask; the clock starts."""
        self.sent = time.perf_counter()
        self._transport.write(REQUEST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.pieces.append(data)
        self._last = (self._last + data)[-len(END) :]  # the end may come in two pieces
        if self._last == END and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def told(self) -> dict[str, Any]:
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


async def read_all(port: int, bodies: list[Any], times: list[float]) -> dict[str, Any]:
    """One reader for each body: what each was told, and the share of a core that this took."""
    loop = asyncio.get_running_loop()
    connections = [await loop.create_connection(Reader, "127.0.0.1", port) for _ in bodies]
    encoded = [json.dumps(body).encode() for body in bodies]
    gc.collect()
    gc.disable()  # or it would look through all that has come, in the middle of it
    started, cpu = time.perf_counter(), time.process_time()
    for (_, reader), body, at in zip(connections, encoded, times, strict=True):
        if (wait := started + at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        reader.send(body)
    await asyncio.wait([reader.ended for _, reader in connections], timeout=MOST_SECONDS)
    busy = (time.process_time() - cpu) / (time.perf_counter() - started)
    gc.enable()
    for transport, _ in connections:
        transport.close()
    return {"busy": busy, "readers": [reader.told() for _, reader in connections]}


def main() -> None:
    """Answer each line until there is none."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(read_all(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
