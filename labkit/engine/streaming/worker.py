"""The thread that drives a streaming server's engine and hands each token to its consumer."""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from labkit.engine.delivery import StepOutputs
from labkit.engine.engine import InferenceEngine
from labkit.engine.prompt import Prompt
from labkit.engine.request import Completion
from labkit.engine.sampling import SamplingParams
from labkit.errors import LabkitError, OptionError, OverloadedError, RequestError, StreamError

# What a stream's queue holds: tokens, with the completion if they are the last; or why there are no more.
Piece = tuple[tuple[int, ...], Completion | None]
Item = Piece | BaseException | None  # None: the stream was closed by its consumer

MOST_READ = 256  # of what was asked for, between two steps
LET_OTHERS_RUN = 1e-5  # seconds; with what the system adds, as long as a thread takes to wake


@dataclass(eq=False, slots=True)
class Submission:
    """What the worker knows of a request. It does not refer to the stream, so a stream can be dropped."""

    queue: Any  # of items, to the consumer: a SimpleQueue for a thread, an asyncio.Queue for a task
    loop: asyncio.AbstractEventLoop | None = None  # only its thread may touch the queue; None: any thread may
    request_id: int | None = None  # once the engine has it; of an `EngineClient`, at once: its own number
    num_prompt_tokens: int = 0  # before its first token comes
    unsent: list[int] = field(default_factory=list)  # tokens of the next chunk
    num_sent: int = 0
    submitted: float = field(default_factory=time.perf_counter)


class Worker:
    """Drives an engine, on a thread of its own: the only one that changes anything in it.

    What others want done (add, cancel, refuse) comes through the inbox, as a function for this
    thread to call between two steps. When there is nothing to do, it sleeps at the inbox. The engine is
    its own until it stops.
    """

    watch_points = ("read_inbox", "step", "hand_over", "deliver")

    def __init__(self, engine: InferenceEngine, stream_interval: int) -> None:
        self.engine = engine
        self._stream_interval = stream_interval
        # SimpleQueue.put may be called from a finalizer, at any moment of any thread.
        self._inbox: SimpleQueue[tuple[Callable[..., None], tuple[object, ...]]] = SimpleQueue()
        self.running: dict[int, Submission] = {}  # in the engine, by request id
        # What consumers on event loops get next, by loop: they are told of all of it at once.
        self._outgoing: defaultdict[asyncio.AbstractEventLoop, list[tuple[Submission, Item]]]
        self._outgoing = defaultdict(list)
        self.quitting = False
        self.lock = threading.RLock()  # reentrant, for `stop` may be called from a finalizer; guards:
        self._unfinished: set[Submission] = set()
        self._closed = False
        self.thread = threading.Thread(target=self._run, name="labkit-streaming", daemon=True)
        self._has_engine: Future[None] = Future()

    def start(self) -> None:
        """Start the thread and wait until it has the engine.

        Raises OptionError, EngineBusyError or BrokenEngineError if it cannot have it.
        """
        try:
            self.thread.start()
            self._has_engine.result()
        except BaseException:  # refused; or interrupted, and then no one else would ever stop it
            self.stop()
            raise

    # --- called by any thread ----------------------------------------------------------------------

    def register(self, submission: Submission, limit: int | None) -> None:
        """Count a request as unfinished.

        Raises OverloadedError if `limit` requests are unfinished, StreamError if the server is closed.
        """
        with self.lock:
            if self._closed:
                raise StreamError("the server is closed and takes no more requests; start a new one")
            if limit is not None and len(self._unfinished) >= limit:
                raise OverloadedError(
                    f"{len(self._unfinished)} requests are unfinished and max_inflight_requests is {limit}; "
                    "submit again when one has ended, or raise the limit"
                )
            self._unfinished.add(submission)

    def forget(self, submission: Submission) -> None:
        """Count a request as finished, so that another one may be submitted."""
        with self.lock:
            self._unfinished.discard(submission)

    @property
    def num_unfinished(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._unfinished)

    def ask(self, function: Callable[..., None], *args: object) -> None:
        """Have the worker's thread call `function(worker, *args)` between two steps.

        The inbox does not refer to the worker: what comes after its end stays there.
        """
        self._inbox.put((function, args))

    def ask_to_cancel(self, submission: Submission) -> None:
        """Have a submission's request cancelled before the next step."""
        self.ask(Worker.cancel, submission)

    def tokenize(self, submission: Submission, prompt: Prompt, params: SamplingParams) -> None:
        """Turn a prompt into token ids, for the worker's thread to add or, if it is refused, to end."""
        if submission not in self._unfinished:  # left while others were tokenized
            return
        try:
            token_ids = self.engine.check_prompt(prompt, params)
        except BaseException as error:
            self.ask(Worker._end, submission, error)
        else:
            self.ask(Worker.add, submission, token_ids, params)

    def stop(self) -> None:
        """Cancel every request, end the thread and wait for it."""
        with self.lock:
            self._closed = True
        self.quitting = True
        self.ask(lambda worker: None)  # wakes the thread
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join()

    # --- called by the worker's thread -------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self.engine.guard:
                if self.engine.has_work:
                    raise OptionError(
                        "the engine has unfinished requests: step it to their end or cancel them first"
                    )
                self.engine.guard.name = "a StreamingServer"
                self._has_engine.set_result(None)
                self._serve()
        except LabkitError as error:
            self._has_engine.set_exception(error)

    def _serve(self) -> None:
        cause = None
        try:
            while self.read_inbox():
                self.step()
                self.deliver()
        except BaseException as error:  # a failed step that could not be undone: the engine is broken
            cause = error
        self._end_all(cause)
        self.deliver()

    def read_inbox(self) -> bool:
        """Do what was asked for, and sleep while no request runs; False when it is time to quit.

        However much is asked for, running requests get their next tokens.
        """
        num_read = 0
        while not self.quitting and not (self.running and (self._inbox.empty() or num_read >= MOST_READ)):
            function, args = self._inbox.get()
            function(self, *args)
            self.deliver()
            num_read += 1
        return not self.quitting

    def add(self, submission: Submission, token_ids: tuple[int, ...], params: SamplingParams) -> None:
        """Queue a submission's request in the engine; if that fails, its stream raises the error."""
        if submission not in self._unfinished:  # cancelled before it came here
            return
        try:
            submission.request_id = self.engine.add_request(token_ids, params)
            submission.num_prompt_tokens = len(token_ids)
        except BaseException as error:
            self._end(submission, error)
            if self.engine.guard.is_broken:
                raise
        else:
            self.running[submission.request_id] = submission

    def cancel(self, submission: Submission) -> None:
        """Cancel a submission's request, if the engine has it, and let another one take its place."""
        request_id = submission.request_id
        if request_id is not None and request_id in self.running:
            # A request that ended in a step that failed cannot be cancelled; the next step hands out its end.
            with contextlib.suppress(RequestError):
                self.engine.cancel(request_id)
                del self.running[request_id]
        self.forget(submission)

    def step(self) -> None:
        """One step of the engine, and its tokens to their consumers; if it fails, all of them are told."""
        try:
            outputs = self.engine.step()
        except BaseException as error:
            self._fail_running(error)
        else:
            self.hand_over(outputs)

    def hand_over(self, outputs: StepOutputs) -> None:
        """Put each request's tokens where its consumer waits."""
        for request_id, token_id, completion in outputs:
            submission = self.running[request_id]
            if token_id is not None:
                submission.unsent.append(token_id)
            if completion is not None:
                del self.running[request_id]
                self._end(submission, (tuple(submission.unsent), completion))
            elif len(submission.unsent) == self._stream_interval:
                self._send(submission, (tuple(submission.unsent), None))
                submission.num_sent += self._stream_interval
                submission.unsent.clear()

    def _fail_running(self, error: BaseException) -> None:
        """A step failed: cancel what is in the engine, and tell each consumer."""
        for request_id, submission in list(self.running.items()):
            try:
                token_ids = self.engine.cancel(request_id).token_ids
            except RequestError:  # it ended in this very step, and the next one hands out its end
                continue
            del self.running[request_id]
            self._cut_short(
                submission, token_ids[submission.num_sent :], "a step of the engine failed", error
            )

    def _cut_short(
        self, submission: Submission, unsent: Sequence[int], what: str, cause: BaseException | None
    ) -> None:
        """End a stream before its time: first the tokens that it has not got yet, then the error."""
        if unsent:
            self._send(submission, (tuple(unsent), None))
        num_tokens = submission.num_sent + len(unsent)
        why = "" if cause is None else f": {cause!r}"
        error = StreamError(f"{what} when this request had {num_tokens} token{'s' * (num_tokens != 1)}{why}")
        error.__cause__ = cause
        self._end(submission, error)

    def _end(self, submission: Submission, last: Item) -> None:
        # In this order: a consumer that has the last item may submit again at once.
        self.forget(submission)
        self._send(submission, last)

    def _send(self, submission: Submission, item: Item) -> None:
        """To a consumer's thread at once, to one on an event loop with the next `deliver`."""
        if submission.loop is None:
            submission.queue.put_nowait(item)
        else:
            self._outgoing[submission.loop].append((submission, item))

    def deliver(self) -> None:
        """Wake each event loop once, however many of its consumers have got something, and let it run."""
        if not self._outgoing:
            return
        while self._outgoing:
            loop, items = self._outgoing.popitem()
            try:
                loop.call_soon_threadsafe(put_each, items)
            except RuntimeError:  # the loop is closed, and its consumers with it
                for submission, _ in items:
                    self.cancel(submission)
        # A loop wakes too slowly to catch Python's lock when this thread is done with it for microseconds,
        # and has then to wait for milliseconds, while tokens pile up.
        time.sleep(LET_OTHERS_RUN)

    def _end_all(self, cause: BaseException | None) -> None:
        """The thread's last act. Whatever is broken, no consumer is left waiting."""
        with contextlib.suppress(BaseException):  # the ends that a failed step has left to the next one
            outputs, self.engine.delivery.outbox = self.engine.delivery.outbox, StepOutputs()
            self.hand_over(outputs)
        with self.lock:
            self._closed = True
            unfinished = list(self._unfinished)
        what = "the server was closed" if cause is None else "the server broke down"
        for submission in unfinished:
            unsent: Sequence[int] = submission.unsent
            if submission.request_id is not None:
                with contextlib.suppress(BaseException):
                    unsent = self.engine.cancel(submission.request_id).token_ids[submission.num_sent :]
            self._cut_short(submission, unsent, what, cause)
        self.running.clear()


def put_each(items: Sequence[tuple[Submission, Item]]) -> None:
    """Put each item into its submission's queue; called by the event loop that the items are for."""
    for submission, item in items:
        submission.queue.put_nowait(item)
