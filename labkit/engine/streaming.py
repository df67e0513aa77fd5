"""Many consumers, one engine: a worker thread steps it and each request's tokens go to their own stream."""

import asyncio
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from labkit.checks import is_whole, require_kind, require_positive, shown
from labkit.engine.engine import Chunk, InferenceEngine
from labkit.engine.prompt import Prompt
from labkit.engine.sampling import SamplingParams
from labkit.engine.streaming_worker import Item, Submission, Worker
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import OptionError, StreamError

AnyStream = TypeVar("AnyStream", bound="Stream")


class StreamingServer:
    """Serves any number of threads and event loops from one engine, which one worker thread drives.

    Many requests are read best from one event loop, a task each (`submit_async`): the worker then wakes one
    thread a step. With a thread each (`submit`) it wakes all of them, and they wait for each other's turn
    to run Python.

    engine: the server's alone until it is closed; calls that would change it raise EngineBusyError.
    max_inflight_requests: unfinished requests at most; `submit` refuses more. None: no limit. A request
        counts until the engine is done with it, whether or not its consumer has read it all.
    stream_interval: tokens in a chunk; the last has what is left.
    tokenize_workers: threads that turn text into tokens. 0: whoever submits does so.

    Requests reach the engine in the order in which they were submitted; with tokenize_workers, in the
    order in which their tokens are ready. If a step of the engine fails, every unfinished stream raises
    StreamError, and the server goes on with new requests.

    Raises OptionError for a value out of range or an engine that has unfinished requests, and
    EngineBusyError for one that somebody drives already.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        max_inflight_requests: int | None = None,
        stream_interval: int = 1,
        tokenize_workers: int = 0,
    ) -> None:
        self.engine = engine
        self.max_inflight_requests = max_inflight_requests
        self.stream_interval = stream_interval
        self.tokenize_workers = tokenize_workers
        self._check_options()
        self._pool = ThreadPoolExecutor(tokenize_workers, "labkit-tokenize") if tokenize_workers else None
        self._worker = Worker(engine, stream_interval)
        # The worker knows nothing of the server, so a forgotten server is closed, too; at the latest at exit.
        self._stop_worker = weakref.finalize(self, self._worker.stop)
        self._worker.start()

    def _check_options(self) -> None:
        require_kind("engine", self.engine, InferenceEngine, "an InferenceEngine")
        require_positive(self, "stream_interval")
        if self.max_inflight_requests is not None:
            require_positive(self, "max_inflight_requests")
        if not is_whole(self.tokenize_workers) or self.tokenize_workers < 0:
            raise OptionError(
                f"tokenize_workers must be a whole number of 0 (none) or more, "
                f"not {shown(self.tokenize_workers)}"
            )
        if self.engine.has_work:
            raise OptionError("the engine has unfinished requests: step it to their end or cancel them first")

    def submit(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> "TokenStream":
        """Queue a request; its tokens come out of the stream. Any thread may call this.

        prompt: text or token ids. Raises, with nothing queued, OverloadedError at max_inflight_requests,
        StreamError if the server is closed, and RequestError if the request can never run; a text that
        tokenize_workers take raises its RequestError from the stream.
        """
        return self._open(TokenStream, Submission(SimpleQueue()), prompt, params)

    def submit_async(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> "AsyncTokenStream":
        """The same for a consumer on the event loop that runs in this thread; nothing here is awaited.

        Raises what `submit` does, and StreamError where no event loop runs.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise StreamError(
                "no event loop runs in this thread: call submit_async in a coroutine, or use submit"
            ) from None
        return self._open(AsyncTokenStream, Submission(asyncio.Queue(), loop), prompt, params)

    def _open(
        self, kind: type[AnyStream], submission: Submission, prompt: Prompt, params: SamplingParams
    ) -> AnyStream:
        submitted = time.perf_counter()
        worker = self._worker
        in_background = self._pool is not None and isinstance(prompt, str)
        with worker.lock:  # so that closing the pool is before all of this or after it
            worker.register(submission, self.max_inflight_requests)
            if in_background:
                self._pool.submit(worker.tokenize, submission, prompt, params)
        if not in_background:
            try:
                # It only reads what never changes, so the worker may be in the middle of a step.
                token_ids = self.engine.check_prompt(prompt, params)
            except BaseException:
                worker.forget(submission)
                raise
            worker.ask(worker.add, submission, token_ids, params)
        return kind(self, worker, submission, submitted)

    def close(self) -> None:
        """Cancel what is unfinished and end the worker; waits for the step it is in. Again: nothing.

        A stream that is cut short gives what it has and then raises StreamError. Called on an event loop,
        it holds the loop up until that step has ended.
        """
        self._stop_worker()
        self._worker.thread.join()  # two threads may close at once
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Stream:
    """A request's tokens as they are made, for one consumer: what both kinds of stream have in common.

    The last chunk carries the completion. Text is decoded when its chunk is taken, in the consumer's
    thread. Iterating raises StreamError if the request was cut short and RequestError if it was refused,
    after the tokens that there were, and again if asked again. Closing or dropping the stream cancels the
    request; the worker does so before its next step.

    submitted: the moment when the request was submitted, in seconds of time.perf_counter().
    """

    def __init__(
        self, server: StreamingServer, worker: Worker, submission: Submission, submitted: float
    ) -> None:
        self.submitted = submitted
        self._server = server  # lives as long as somebody reads
        self._queue = submission.queue
        self._loop = submission.loop
        self._decoder = TextDecoder(server.engine.model.tokenizer)
        self._ended = False
        self._error: BaseException | None = None
        self._cancel = weakref.finalize(self, worker.ask, worker.cancel, submission)  # at most one call

    def close(self) -> None:
        """Stop listening: cancel the request if it is unfinished. Iterating a closed stream just ends."""
        self._ended = True
        self._cancel()
        self._queue.put_nowait(None)  # for a consumer that waits

    def _has_ended(self) -> bool:
        """Whether nothing more comes. Raises what cut the stream short."""
        if self._error is not None and not self._ended:
            raise self._error
        return self._ended

    def _chunk(self, item: Item) -> Chunk | None:
        """What an item of the queue holds; None if the stream was closed meanwhile. Raises an error in it."""
        if self._ended:
            return None
        if isinstance(item, BaseException):
            self._cancel.detach()
            self._error = item
            raise item
        token_ids, completion = item
        text = self._decoder.push(token_ids)
        if completion is not None:
            self._ended = True
            self._cancel.detach()
            text += self._decoder.finish()
        return Chunk(text, token_ids, completion)


class TokenStream(Stream):
    """An iterator of `Chunk`, for a thread; another may close it."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = None if self._has_ended() else self._chunk(self._queue.get())
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class AsyncTokenStream(Stream):
    """An asynchronous iterator of `Chunk`, for a task of the event loop that it was made on.

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
