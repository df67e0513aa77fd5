"""The stream of one request's tokens that a consumer reads, in a thread or on an event loop."""

import asyncio
import contextlib
import copy
import weakref
from collections.abc import Callable
from typing import Self

from labkit.engine.request import Chunk
from labkit.engine.streaming.worker import Item, Submission
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import StreamError


class Stream:
    """A request's tokens as they are made, for one consumer; base of `TokenStream` and `AsyncTokenStream`.

    The last chunk carries the completion. Text is decoded when its chunk is taken, in the consumer's
    thread. Iterating raises StreamError if the request was cut short and RequestError if it was refused,
    after the tokens that there were, and again if asked again; so it does what decoding raises. Closing
    or dropping the stream cancels the request; the worker does so before its next step.

    submitted: the moment when the request was submitted, in seconds of time.perf_counter().
    """

    def __init__(
        self,
        server: object,
        decoder: TextDecoder,
        cancel: Callable[[Submission], object],
        submission: Submission,
    ) -> None:
        self.submitted = submission.submitted
        self._submission = submission
        self._server = server  # lives as long as a stream is read
        self._queue = submission.queue
        self._loop = submission.loop
        self._decoder = decoder
        self._ended = False
        self._error: BaseException | None = None  # never raised itself: a traceback refers to the stream
        self._cancel = weakref.finalize(self, cancel, submission)  # at most one call, from any thread

    def __repr__(self) -> str:
        number = self._submission.request_id
        state = "ended" if self._ended or self._error is not None else "open"
        return f"{type(self).__name__}(request {'not admitted yet' if number is None else number}, {state})"

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, from the first chunk on; 0 before."""
        return self._submission.num_prompt_tokens

    def close(self) -> None:
        """Stop listening: cancel the request if it is unfinished. Iterating a closed stream just ends."""
        self._ended = True
        self._cancel()
        self._queue.put_nowait(None)  # for a consumer that waits

    def _has_ended(self) -> bool:
        """Whether nothing more comes. Raises what cut the stream short."""
        if self._error is not None and not self._ended:
            raise copy_of(self._error)
        return self._ended

    def _chunk(self, item: Item) -> Chunk | None:
        """What an item of the queue holds; None if the stream was closed meanwhile. Raises an error in it."""
        if item is None or self._ended:
            return None
        if isinstance(item, BaseException):
            self._cancel.detach()
            self._error = item
            raise copy_of(item)
        token_ids, completion = item
        try:
            text = self._decoder.push(token_ids)
            if completion is not None:
                text += self._decoder.finish()
        except BaseException as error:  # a chunk is lost, so no later one may look as if all was well
            self._cancel()
            self._error = copy_of(error)
            raise
        if completion is not None:
            self._ended = True
            self._cancel.detach()
        return Chunk(text, token_ids, completion)


def copy_of(error: BaseException) -> BaseException:
    """The same error, to be raised once; a StreamError that tells of it if its class allows no copy."""
    try:
        made = copy.copy(error)
    except Exception:
        made = StreamError(repr(error))
    made.__cause__ = error.__cause__
    return made


class TokenStream(Stream):
    """An iterator of a request's `Chunk`s, for one thread; another thread may close it.

    Iterating raises StreamError if the request was cut short and RequestError if it was refused. An interrupt
    (KeyboardInterrupt) while a chunk is waited for closes the stream.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        try:
            if not self._has_ended() and (chunk := self._chunk(self._queue.get())) is not None:
                return chunk
        except KeyboardInterrupt:  # what was taken from the queue may be lost
            self.close()
            raise
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTokenStream(Stream):
    """An asynchronous iterator of a request's `Chunk`s, for a task of the event loop that it was made on.

    It may be used on that loop only; StreamError on another. If a task is cancelled while it waits for a
    chunk, be it by a timeout, that closes the stream. A loop that is closed cancels its requests.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if asyncio.get_running_loop() is not self._loop:  # the tokens would never come to this one
            raise StreamError("this stream was submitted on another event loop: read it there")
        try:
            chunk = None if self._has_ended() else self._chunk(await self._queue.get())
        except asyncio.CancelledError:
            self.close()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def take_waiting(self) -> Chunk | None:
        """The next chunk if it has come, without waiting: a slow consumer catches up by asking until None.

        None if nothing has come, or if an error has, which the next iteration raises.
        """
        if not (self._queue.empty() or self._ended or self._error):
            with contextlib.suppress(Exception):
                return self._chunk(self._queue.get_nowait())
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
