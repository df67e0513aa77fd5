"""Many consumers, one engine: a worker thread steps it and each request's tokens go to their own stream."""

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Self

from labkit.checks import is_whole, require_kind, require_positive, shown
from labkit.engine.engine import InferenceEngine
from labkit.engine.prompt import Limits, Prompt, check_params
from labkit.engine.sampling import SamplingParams
from labkit.engine.stats import EngineStats
from labkit.engine.streaming.stream import AsyncTokenStream, TokenStream
from labkit.engine.streaming.worker import Item, Submission, Worker
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import OptionError, StreamError
from labkit.model.chat import Voice


class StreamingServer:
    """Serves any number of threads and event loops from one engine, which one worker thread drives.

    Many requests are read best from one event loop, one task per request (`submit_async`): the worker then
    wakes one thread per step. With one thread per request (`submit`) it wakes all of them, and they wait for
    each other's turn to run Python.

    engine: belongs to the server until that is closed; calls that would change it raise EngineBusyError.
    max_inflight_requests: unfinished requests at most; `submit` refuses more. None: no limit. A request
        counts until the engine is done with it, whether or not its consumer has read it all.
    stream_interval: tokens per chunk; the last has what is left.
    tokenize_workers: threads that turn text into tokens. 0: the thread that submits does so.

    Requests reach the engine in the order in which they were submitted; with tokenize_workers, in the
    order in which their tokens are ready. If a step of the engine fails, the stream of every request
    that is in the engine raises StreamError, and the server goes on with those that come after.

    Raises OptionError for a value out of range or an engine that has unfinished requests, EngineBusyError for
    one that another thread or server drives already, and BrokenEngineError for one that is broken.
    """

    watch_points = ("decoder",)

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
        require_kind("engine", engine, InferenceEngine, "an InferenceEngine")
        require_positive(self, "stream_interval")
        if max_inflight_requests is not None:
            require_positive(self, "max_inflight_requests")
        if not is_whole(tokenize_workers) or tokenize_workers < 0:
            raise OptionError(
                f"tokenize_workers must be a whole number of 0 (none) or more, not {shown(tokenize_workers)}"
            )
        self._pool = ThreadPoolExecutor(tokenize_workers, "labkit-tokenize") if tokenize_workers else None
        self.worker = Worker(engine, stream_interval)
        # The worker knows nothing of the server, so a forgotten server is closed, too; at the latest at exit.
        weakref.finalize(self, self.worker.stop)
        self.worker.start()

    def __repr__(self) -> str:
        state = "serving" if self.is_serving else "closed"
        return f"StreamingServer({self.engine!r}, {self.num_unfinished} unfinished, {state})"

    # --- what `labkit.serve` asks of what serves it -------------------------------------------------

    @property
    def voice(self) -> Voice:
        """How the model reads and writes."""
        return self.engine.model.voice

    @property
    def limits(self) -> Limits:
        """What a request must fit."""
        return self.engine.limits

    @property
    def num_unfinished(self) -> int:
        """Requests that were submitted and have not ended."""
        return self.worker.num_unfinished

    @property
    def is_serving(self) -> bool:
        """Whether requests are taken: not if it is closed or its engine is broken."""
        return self.worker.thread.is_alive()

    def stats(self) -> EngineStats:
        """The engine's state; a step may be under way."""
        return self.engine.stats()

    # --- requests ----------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> TokenStream:
        """Queue a request; its tokens come out of the stream. Any thread may call this.

        prompt: text or token ids. Raises, with nothing queued, OverloadedError at max_inflight_requests,
        StreamError if the server is closed, and RequestError if the request can never run; a text that
        tokenize_workers take raises its RequestError from the stream.
        """
        submission = Submission(SimpleQueue[Item]())
        self._queue(submission, prompt, params)
        return TokenStream(self, self.decoder(params), self.worker.ask_to_cancel, submission)

    def submit_async(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> AsyncTokenStream:
        """Queue a request for a consumer on the event loop that runs in this thread; nothing here is awaited.

        prompt: text or token ids. Raises what `submit` does, and StreamError where no event loop runs.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise StreamError(
                "no event loop runs in this thread: call submit_async in a coroutine, or use submit"
            ) from None
        submission = Submission(asyncio.Queue[Item](), loop)
        self._queue(submission, prompt, params)
        return AsyncTokenStream(self, self.decoder(params), self.worker.ask_to_cancel, submission)

    def _queue(self, submission: Submission, prompt: Prompt, params: SamplingParams) -> None:
        """Hand a request to the worker: its text is turned into tokens by the pool, or here."""
        check_params(params)
        worker = self.worker
        pool = self._pool if isinstance(prompt, str) else None
        try:
            with worker.lock:  # so that closing the pool is before all of this or after it
                worker.register(submission, self.max_inflight_requests)
                if pool is not None:
                    pool.submit(worker.tokenize, submission, prompt, params)
            if pool is None:
                # It only reads what never changes, so the worker may be in the middle of a step.
                token_ids = self.engine.check_prompt(prompt, params)
                worker.ask(Worker.add, submission, token_ids, params)
        except BaseException:
            worker.forget(submission)
            raise

    def decoder(self, params: SamplingParams) -> TextDecoder:
        """What turns the tokens of a stream into text."""
        return TextDecoder(self.engine.model.tokenizer, params.stop)

    def close(self) -> None:
        """Cancel what is unfinished and end the worker, after the step it is in. A second call does nothing.

        A stream that is cut short gives what it has and then raises StreamError. Called on an event loop,
        it holds the loop up until that step has ended.
        """
        self.worker.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
