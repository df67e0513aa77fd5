"""Many consumers, one engine: a worker thread steps it and each request's tokens go to their own stream."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch

from labkit.engine.config import require_positive
from labkit.engine.engine import Chunk, InferenceEngine, Prompt
from labkit.engine.request import Completion, StepOutput
from labkit.engine.sampling import SamplingParams, is_whole
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import OptionError, OverloadedError, RequestError, StreamError

# What a stream's queue holds: tokens, with the completion if they are the last; or why there are no more.
Piece = tuple[tuple[int, ...], Completion | None]
Item = Piece | BaseException | None  # None: nobody listens any more


class StreamingServer:
    """Serves any number of threads from one engine, which one worker thread drives.

    engine: nobody else may use it until the server is closed.
    max_inflight_requests: unfinished requests at most; `submit` refuses more. None: no limit. A request
        counts until the engine is done with it, whether or not its consumer has read it all.
    stream_interval: tokens in a chunk; the last has what is left.
    tokenize_workers: threads that turn text into tokens. 0: `submit` does so in the caller's thread.

    Requests reach the engine in the order in which they were submitted; with tokenize_workers, in the
    order in which their tokens are ready. If a step of the engine fails, every unfinished stream raises
    StreamError, and the server goes on with new requests.

    Raises OptionError for a value out of range or an engine that has unfinished requests.
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

    def _check_options(self) -> None:
        require_positive(self, "stream_interval")
        if self.max_inflight_requests is not None:
            require_positive(self, "max_inflight_requests")
        if not is_whole(self.tokenize_workers) or self.tokenize_workers < 0:
            raise OptionError(
                f"tokenize_workers must be a whole number of 0 (none) or more, not {self.tokenize_workers!r}"
            )
        if self.engine.has_work:
            raise OptionError("the engine has unfinished requests: step it to their end or cancel them first")

    def submit(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> "TokenStream":
        """Queue a request; its tokens come out of the stream. Any thread may call this.

        prompt: text or token ids. Raises, with nothing queued, OverloadedError at max_inflight_requests,
        StreamError if the server is closed, and RequestError if the request can never run; a text that
        tokenize_workers take raises its RequestError from the stream.
        """
        submitted = time.perf_counter()
        worker = self._worker
        in_background = self._pool is not None and isinstance(prompt, str)
        with worker.lock:  # so that closing the pool is before all of this or after it
            submission = worker.register(self.max_inflight_requests)
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
        return TokenStream(self, worker, submission, submitted)

    def close(self) -> None:
        """Cancel what is unfinished and end the worker; waits for the step it is in. Again: nothing.

        A stream that is cut short gives what it has and then raises StreamError.
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


class TokenStream:
    """A request's tokens as they are made: an iterator of `Chunk`, for one consumer.

    The last chunk carries the completion. Text is decoded when its chunk is taken, in the consumer's
    thread. Iterating raises StreamError if the request was cut short and RequestError if it was refused,
    after the tokens that there were, and again if asked again. Closing or dropping the stream cancels the
    request; the worker does so before its next step.

    submitted: the moment when `submit` was called, in seconds of time.perf_counter().
    """

    def __init__(
        self, server: StreamingServer, worker: "Worker", submission: "Submission", submitted: float
    ) -> None:
        self.submitted = submitted
        self._server = server  # lives as long as somebody reads
        self._queue = submission.queue
        self._decoder = TextDecoder(server.engine.model.tokenizer)
        self._ended = False
        self._error: BaseException | None = None
        self._cancel = weakref.finalize(self, worker.ask, worker.cancel, submission)  # at most one call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._ended:
            raise StopIteration
        if self._error is not None:
            raise self._error
        item = self._queue.get()
        if self._ended:  # closed by another thread meanwhile
            raise StopIteration
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

    def close(self) -> None:
        """Stop listening: cancel the request if it is unfinished. Iterating a closed stream just ends."""
        self._ended = True
        self._cancel()
        self._queue.put(None)  # for a consumer that waits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class Submission:
    """What the worker knows of a request. It knows nothing of the stream, so that one can be dropped."""

    queue: SimpleQueue[Item] = field(default_factory=SimpleQueue)
    request_id: int | None = None  # once the engine has it
    unsent: list[int] = field(default_factory=list)  # tokens of the next chunk
    num_sent: int = 0


class Worker:
    """The thread that drives an engine: the only one that changes anything in it.

    What others want done (add, cancel, refuse, quit) comes through the inbox, as a function for this
    thread to call between two steps. When there is nothing to do, it sleeps at the inbox.
    """

    def __init__(self, engine: InferenceEngine, stream_interval: int) -> None:
        self._engine = engine
        self._stream_interval = stream_interval
        # SimpleQueue.put may be called from a finalizer, at any moment of any thread.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[int, Submission] = {}  # in the engine, by request id
        self._quitting = False
        self.lock = threading.RLock()  # reentrant, for `stop` may be called from a finalizer; guards:
        self._unfinished: set[Submission] = set()
        self._closed = False
        self.thread = threading.Thread(target=self._run, name="labkit-streaming", daemon=True)
        self.thread.start()

    # --- called by any thread ----------------------------------------------------------------------

    def register(self, limit: int | None) -> Submission:
        """Room for one more request. Raises OverloadedError if there is none, StreamError if closed."""
        with self.lock:
            if self._closed:
                raise StreamError("the server is closed and takes no more requests; start a new one")
            if limit is not None and len(self._unfinished) >= limit:
                raise OverloadedError(
                    f"{len(self._unfinished)} requests are unfinished and max_inflight_requests is {limit}; "
                    "submit again when one has ended, or raise the limit"
                )
            submission = Submission()
            self._unfinished.add(submission)
            return submission

    def forget(self, submission: Submission) -> None:
        """Give a request's room back."""
        with self.lock:
            self._unfinished.discard(submission)

    def ask(self, function: Callable[..., None], *args: object) -> None:
        """Have the worker call the function."""
        self._inbox.put(partial(function, *args))

    def tokenize(self, submission: Submission, prompt: Prompt, params: SamplingParams) -> None:
        try:
            token_ids = self._engine.check_prompt(prompt, params)
        except BaseException as error:
            self.ask(self._end, submission, error)
        else:
            self.ask(self.add, submission, token_ids, params)

    def stop(self) -> None:
        """End everything and wait for the thread."""
        with self.lock:
            self._closed = True
        self.ask(self._quit)
        if threading.current_thread() is not self.thread:
            self.thread.join()

    # --- called by the worker's thread -------------------------------------------------------------

    def _run(self) -> None:
        cause = None
        try:
            with current_device(self._engine.device):
                while self._read_inbox():
                    self._step()
        except BaseException as error:  # not a step, but what mends one: the engine cannot be trusted
            cause = error
        self._end_all(cause)

    def _read_inbox(self) -> bool:
        """Do what was asked for, and sleep while no request runs; False when it is time to quit."""
        while not self._quitting and not (self._running and self._inbox.empty()):
            self._inbox.get()()
        return not self._quitting

    def add(self, submission: Submission, token_ids: tuple[int, ...], params: SamplingParams) -> None:
        if submission not in self._unfinished:  # cancelled before it came here
            return
        try:
            submission.request_id = self._engine.add_request(token_ids, params)
        except BaseException as error:
            self._end(submission, error)
        else:
            self._running[submission.request_id] = submission

    def cancel(self, submission: Submission) -> None:
        if submission.request_id in self._running:
            # A request that ended in a step that failed cannot be cancelled; the next step hands out its end.
            with contextlib.suppress(RequestError):
                self._engine.cancel(submission.request_id)
                del self._running[submission.request_id]
        self._end(submission, None)

    def _quit(self) -> None:
        self._quitting = True

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except BaseException as error:
            self._fail_running(error)
        else:
            self._hand_over(outputs)

    def _hand_over(self, outputs: Sequence[StepOutput]) -> None:
        """Put each request's tokens where its consumer waits."""
        for request_id, token_id, completion in outputs:
            submission = self._running[request_id]
            if token_id is not None:
                submission.unsent.append(token_id)
            if completion is not None:
                del self._running[request_id]
                self._end(submission, (tuple(submission.unsent), completion))
            elif len(submission.unsent) == self._stream_interval:
                submission.queue.put((tuple(submission.unsent), None))
                submission.num_sent += self._stream_interval
                submission.unsent.clear()

    def _fail_running(self, error: BaseException) -> None:
        """A step failed: cancel what is in the engine, and tell each consumer."""
        for submission in list(self._running.values()):
            try:
                token_ids = self._engine.cancel(submission.request_id).token_ids
            except RequestError:  # it ended in this very step, and the next one hands out its end
                continue
            del self._running[submission.request_id]
            self._cut_short(
                submission, token_ids[submission.num_sent :], "a step of the engine failed", error
            )

    def _cut_short(
        self, submission: Submission, unsent: Sequence[int], what: str, cause: BaseException | None
    ) -> None:
        """End a stream before its time: first the tokens that it has not got yet, then the error."""
        if unsent:
            submission.queue.put((tuple(unsent), None))
        num_tokens = submission.num_sent + len(unsent)
        why = "" if cause is None else f": {cause!r}"
        error = StreamError(f"{what} when this request had {num_tokens} token{'s' * (num_tokens != 1)}{why}")
        error.__cause__ = cause
        self._end(submission, error)

    def _end(self, submission: Submission, last: Item) -> None:
        # In this order: whoever has the last item may submit again at once.
        self.forget(submission)
        submission.queue.put(last)

    def _end_all(self, cause: BaseException | None) -> None:
        """The thread's last act. Whatever is broken, no consumer is left waiting."""
        with self.lock:
            self._closed = True
            unfinished = list(self._unfinished)
        what = "the server was closed" if cause is None else "the server broke down"
        for submission in unfinished:
            unsent = submission.unsent
            if submission.request_id is not None:
                with contextlib.suppress(BaseException):
                    unsent = self._engine.cancel(submission.request_id).token_ids[submission.num_sent :]
            self._cut_short(submission, unsent, what, cause)
        self._running.clear()


def current_device(device: torch.device) -> contextlib.AbstractContextManager:
    """Which GPU is current is each thread's own setting; kernels are launched there."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
