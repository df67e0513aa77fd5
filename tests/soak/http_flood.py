"""A flood over HTTP: clients well and badly behaved, and what must hold of every one of them."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from labkit import InferenceEngine, SamplingParams

SAMPLED_EVERY = 100  # requests, of memory
NUM_QUESTIONS = 12
HUGE = "word " * 200_000  # of a prompt: a megabyte
# What a client does, each with its weight.
KINDS = {
    "reads all": 44,  # of a stream
    "reads it whole": 10,  # in one piece
    "reads slowly": 5,
    "leaves before": 17,  # any text has come
    "leaves amid": 17,
    "sends no JSON": 3,
    "sends half": 2,  # of a request, and leaves
    "sends too much": 2,
}
LEAVES = ("leaves before", "leaves amid", "sends half")
REFUSED = {"sends no JSON": None, "sends too much": "context_length_exceeded"}  # each with its error's code


@dataclass(frozen=True)
class Question:
    """A prompt, and the text that a greedy answer of so many tokens has, as the engine gives it alone."""

    prompt: Sequence[int]
    max_tokens: int
    text: str


def draw_questions(
    engine: InferenceEngine, longest: int, most_new_tokens: int, seed: int = 0
) -> list[Question]:
    """Random prompts, and what an engine without a prefix cache goes on with, one after the other."""
    dice, made = random.Random(seed), []
    for _ in range(NUM_QUESTIONS):
        vocab_size = engine.model.config.vocab_size
        prompt = dice.choices(range(vocab_size), k=dice.randint(1, longest))
        params = SamplingParams(dice.randint(2, most_new_tokens), stop_on_eos=False)
        (done,) = engine.generate([prompt], params)
        made.append(Question(prompt, params.max_new_tokens, done.text))
    return made


class HttpFlood:
    """Clients of a server at `url`, each with one request on a connection of its own. What must never be
    raises AssertionError: a text that is another one than alone, an end without [DONE], an error in no shape
    of OpenAI's.

    memory: bytes of all processes of the server, now.
    """

    def __init__(
        self, url: str, questions: Sequence[Question], memory: Callable[[], int], seed: int = 0
    ) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        self._questions = questions
        self._dice = random.Random(seed)
        self._read_memory, self.memory = memory, list[int]()
        self.ended: Counter[str] = Counter()
        self.errors = self.retries = 0  # bodies of errors that were read; and those with 429, asked again
        self.most_open, self._open = 0, 0  # streams that were asked for and have not ended

    async def all_at_once(self, num: int) -> None:
        """So many streams, of which each is asked for when all have a connection."""
        all_connect = asyncio.Barrier(num)

        async def client(question: Question) -> None:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            await all_connect.wait()
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            self._write(writer, self._body(question, stream=True))
            head, read = await reader.readuntil(b"\r\n\r\n"), await reader.read()
            writer.close()
            self._check("reads all", head, read, question)
            self._open -= 1
            self._ends("reads all")

        async with asyncio.TaskGroup() as clients:
            for number in range(num):
                clients.create_task(client(self._questions[number % len(self._questions)]))

    async def flood(self, num: int, at_once: int, progress: Callable[[int], object] = lambda _: None) -> None:
        """So many requests of all kinds, from `at_once` clients that ask one after the other."""
        kinds = iter(self._dice.choices(list(KINDS), list(KINDS.values()), k=num))

        async def client() -> None:
            for kind in kinds:
                await self._one(kind)
                progress(sum(self.ended.values()))

        async with asyncio.TaskGroup() as clients:
            for _ in range(at_once):
                clients.create_task(client())

    # --- one request -------------------------------------------------------------------------------

    async def _one(self, kind: str) -> None:
        question = self._dice.choice(self._questions)
        body = self._body(question, stream=kind != "reads it whole")
        if kind == "sends no JSON":
            body = body[: self._dice.randrange(len(body))]
        elif kind == "sends too much":
            body = self._body(Question(HUGE, 1, ""), stream=True)
        while True:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            self._write(writer, body, length=2 * len(body) if kind == "sends half" else None)
            try:
                if kind in LEAVES:
                    if kind == "leaves amid":
                        await reader.readuntil(b"data: ")
                    writer.transport.abort()
                    break
                head = await reader.readuntil(b"\r\n\r\n")
                read = await self._read(reader, slowly=kind == "reads slowly")
            except asyncio.IncompleteReadError as error:  # of one who leaves amid, and is refused
                head, read = error.partial, error.partial.partition(b"\r\n\r\n")[2]
            finally:
                writer.close()
            if not head.startswith(b"HTTP/1.1 429"):
                self._check(kind, head, read, question)
                break
            assert b"retry-after: " in head.lower() and error_in(read)["type"] == "rate_limit_error"
            self.retries += 1
            await asyncio.sleep(0.1)
        self._ends(kind)

    def _write(self, writer: asyncio.StreamWriter, body: bytes, length: int | None = None) -> None:
        """Send a request. length: that it says it has."""
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n")
        writer.write(f"Content-Length: {length or len(body)}\r\n\r\n".encode() + body)

    def _body(self, question: Question, stream: bool) -> bytes:
        asked = {"prompt": question.prompt, "max_tokens": question.max_tokens, "temperature": 0}
        return json.dumps(asked | {"model": self._model, "ignore_eos": True, "stream": stream}).encode()

    async def _read(self, reader: asyncio.StreamReader, slowly: bool) -> bytes:
        read = b""
        while part := await reader.read(200 if slowly else 65536):
            read += part
            if slowly:
                await asyncio.sleep(0.01)
        return read

    def _check(self, kind: str, head: bytes, read: bytes, question: Question) -> None:
        if kind in REFUSED:
            self.errors += 1
            assert head.startswith(b"HTTP/1.1 400") and error_in(read)["code"] == REFUSED[kind], (kind, head)
            return
        assert head.startswith(b"HTTP/1.1 200"), (kind, head, read)
        if kind == "reads it whole":
            assert json.loads(read)["choices"][0]["text"] == question.text
        else:
            self.check_stream(read, question)

    def check_stream(self, read: bytes, question: Question) -> None:
        """Raise AssertionError unless a reply is the whole answer."""
        frames = [line[6:] for line in read.split(b"\n") if line.startswith(b"data: ")]
        assert frames and frames.pop() == b"[DONE]", f"a stream ends with {frames[-1:]}"
        choices = [json.loads(frame)["choices"][0] for frame in frames]
        assert "".join(choice["text"] for choice in choices) == question.text
        assert choices[-1]["finish_reason"] == "length"

    def _ends(self, kind: str) -> None:
        self.ended[kind] += 1
        if sum(self.ended.values()) % SAMPLED_EVERY == 0:
            self.memory.append(self._read_memory())


def error_in(read: bytes) -> dict[str, Any]:
    """The error of a reply, which must have OpenAI's shape; the reply may be in chunks."""
    error = json.loads(read[read.index(b"{") : read.rindex(b"}") + 1])["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"], error
    return error


def resident(*pids: int) -> int:
    """Bytes of memory that processes have now; 0 where there is no /proc."""
    files = [Path(f"/proc/{pid}/statm") for pid in pids]
    return sum(int(file.read_text().split()[1]) for file in files if file.exists()) * PAGESIZE


def blocks_lost(url: str, seconds: float = 60) -> int:
    """Blocks that are neither free nor kept for prompts that begin alike, when a server's engine is idle.

    Raises AssertionError if it never is.
    """
    until = time.monotonic() + seconds
    while True:
        told = dict(line.split() for line in httpx.get(f"{url}/metrics").text.splitlines() if line[:1] != "#")
        state = {name.removeprefix("labkit_"): float(value) for name, value in told.items()}
        if not sum(state[f"{which}_requests"] for which in ("waiting", "joining", "running")):
            return int(state["kv_blocks"] - state["kv_blocks_free"] - state["prefix_entries"])
        assert time.monotonic() < until, f"requests are left: {state}"
        time.sleep(0.1)
