"""Lesson 19: parts of a server that are wrong, each in one thing that no quiet try would show."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from labkit.engine.text_decoder import text_before
from labkit.learn.lesson_19.parts import Piece, Reply
from labkit.serve.replies import DONE, frame


class LooksAtTheEnd:
    """it looks for a stop string at the end of the text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop, self.text, self.is_over = stop, "", False

    def push(self, text: str) -> str:
        self.text += text
        self.is_over = self.is_over or any(self.text.endswith(string) for string in self.stop)
        return text_before(text, self.stop) if self.is_over else text

    def finish(self) -> str:
        return ""


async def done_whatever_happens(pieces: AsyncIterator[Piece], reply: Reply) -> AsyncIterator[bytes]:
    """it sends [DONE] even after an error."""
    yield frame(reply.chunk({"role": "assistant", "content": ""}))
    try:
        async for text, completion in pieces:
            reason = None if completion is None else reply.reason(completion)
            yield frame(reply.chunk({"content": text}, reason))
            if completion is not None and reply.include_usage:
                yield frame(reply.usage(completion))
    except Exception as error:
        yield frame(reply.error(error))
    yield DONE


async def at_the_next_token(receive: Callable[[], Awaitable[dict[str, Any]]], streams: Sequence[Any]) -> None:
    """after the client has left, it waits for one more token before it closes a stream."""
    while (await receive())["type"] != "http.disconnect":
        pass
    for stream in streams:
        await anext(stream, None)
        stream.close()


def counts_what_is_there(unfinished: int, asked: int, limit: int) -> int:
    """it does not count what is asked for."""
    return 429 if unfinished >= limit else 200
