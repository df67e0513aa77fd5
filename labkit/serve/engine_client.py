"""The server's end of the engine's process: requests go there, and their tokens come to streams here."""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from labkit.engine import AsyncTokenStream, Completion, EngineStats, FinishReason, SamplingParams
from labkit.engine.prompt import Limits, Prompt, check_params
from labkit.engine.request import Timing
from labkit.engine.streaming.worker import Item, Submission
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import LabkitError, OverloadedError, StreamError
from labkit.model.chat import Voice
from labkit.serve.engine_process import EngineSettings
from labkit.serve.wire import Wire, encoded, error_of, read_voice, token_of

LONG_TEXT = 10_000  # characters; a longer one is tokenized while others are served
STATS = TypeAdapter(EngineStats)
SECONDS_TO_END = 10.0  # of an engine's process that was asked to; then it is killed


@dataclass(eq=False, slots=True, kw_only=True)
class Pending(Submission):
    """A request that the engine's process is not done with; both processes know it by its `request_id`."""

    request_id: int
    params: SamplingParams
    prompt: tuple[int, ...] = ()  # once it is tokenized
    token_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each token came


class EngineClient:
    """Serves the tasks of one event loop from an engine in another process, as a `StreamingServer` does from
    one in this. All calls but `close` and the properties are for the loop's thread.

    end: of a pair of sockets whose other end an `EngineHost` has. process: that host's, to be waited for.
    max_inflight_requests: unfinished requests at most; None: no limit.

    Raises LabkitError if the other process says why there is no engine, or ends before there is one.
    """

    def __init__(
        self,
        end: socket.socket,
        process: subprocess.Popen | None = None,
        *,
        max_inflight_requests: int | None = None,
    ) -> None:
        self.process, self.max_inflight_requests = process, max_inflight_requests
        self._wire = Wire(end)
        introduced = self._wire.first()
        if introduced is None:
            code = process.wait() if process else None
            raise LabkitError(f"the engine's process ended ({code}) before the engine was ready")
        if "refused" in introduced:
            raise LabkitError(introduced["refused"])
        self.name: str = introduced["name"]
        self.voice: Voice = read_voice(introduced)
        self.limits = Limits(**introduced["limits"])
        self._stats: dict[str, Any] = introduced["stats"]
        self._numbers = itertools.count()
        self._pending: dict[int, Pending] = {}
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = ThreadPoolExecutor(1, "labkit-tokenize")
        self._is_closed = False
        self._closing = threading.Lock()

    @classmethod
    def start(cls, settings: EngineSettings, *, max_inflight_requests: int | None = None) -> "EngineClient":
        """Start a process with such an engine, and wait until it is ready."""
        here, there = socket.socketpair()
        command = [sys.executable, "-m", "labkit.serve.engine_process", str(os.getpid()), str(there.fileno())]
        with there:
            # In a session of its own, so that a terminal's Ctrl-C is for the server alone.
            process = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True)
        try:
            here.sendall(encoded(asdict(settings)))
            return cls(here, process, max_inflight_requests=max_inflight_requests)
        except BaseException:  # a Ctrl-C, too
            process.kill()
            process.wait()
            here.close()
            raise

    def __repr__(self) -> str:
        state = "serving" if self.is_serving else "closed"
        return f"EngineClient({self.name}, {self.num_unfinished} unfinished, {state})"

    @property
    def num_unfinished(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._pending)

    @property
    def is_serving(self) -> bool:
        """Whether requests are taken: not if it is closed or the engine's process has ended."""
        return not self._is_closed and (self.process is None or self.process.poll() is None)

    def stats(self) -> EngineStats:
        """The engine's state as it was last told: at most a tenth of a second ago, or a step."""
        return STATS.validate_python(self._stats)

    # --- requests ----------------------------------------------------------------------------------

    def submit_async(self, prompt: Prompt, params: SamplingParams) -> AsyncTokenStream:
        """Queue a request for a task of this event loop; nothing here is awaited.

        prompt: text or token ids. Raises, with nothing queued, OverloadedError at max_inflight_requests,
        StreamError if there is no engine any more, and RequestError if the request can never run; a long text
        raises its RequestError from the stream.
        """
        check_params(params)
        loop = asyncio.get_running_loop()
        self._attach(loop)
        if not self.is_serving:
            raise StreamError("the engine has stopped and takes no more requests; start the server again")
        limit = self.max_inflight_requests
        if limit is not None and len(self._pending) >= limit:
            raise OverloadedError(f"{len(self._pending)} requests are unfinished and {limit} are the most")
        number = next(self._numbers)
        pending = Pending(asyncio.Queue[Item](), loop, request_id=number, params=params)
        if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
            self._pending[number] = pending
            try:
                self._pool.submit(self._tokenize, pending, prompt)
            except BaseException:
                del self._pending[number]
                raise
        else:
            token_ids = self.limits.check_prompt(prompt, params, self.voice.tokenizer)
            self._pending[number] = pending
            self._add(pending, token_ids)
        decoder = TextDecoder(self.voice.tokenizer, params.stop)
        return AsyncTokenStream(self, decoder, self._ask_to_cancel, pending)

    def _tokenize(self, pending: Pending, prompt: str) -> None:
        """In a thread of its own: turn a text into tokens, for the loop's thread to go on with."""
        if pending.request_id not in self._pending:  # left while others were tokenized
            return
        try:
            token_ids = self.limits.check_prompt(prompt, pending.params, self.voice.tokenizer)
        except BaseException as error:
            self._call(self._end, pending, error)
        else:
            self._call(self._add, pending, token_ids)

    def _add(self, pending: Pending, token_ids: tuple[int, ...]) -> None:
        """A request that can't be sent ends with the error, wherever it is added from."""
        if pending.request_id in self._pending:  # else it was left, or has ended with the engine's process
            try:
                self._send([pending.request_id, token_ids, vars(pending.params)])
                pending.prompt, pending.num_prompt_tokens = token_ids, len(token_ids)
            except Exception as error:
                self._end(pending, error)

    def _ask_to_cancel(self, submission: Submission) -> None:
        """Of a stream that was left; a finalizer may call it, in any thread."""
        self._call(self._cancel, submission.request_id)

    def _cancel(self, number: int) -> None:
        pending = self._pending.get(number)  # none, if it has ended meanwhile
        if pending is not None and pending.prompt:
            self._send([number])  # and it counts until the engine has let go of it
        elif pending is not None:
            del self._pending[number]  # its text is not tokenized yet

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Have the loop's thread call it. A loop that is closed has no streams any more."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # --- the wire: never waited for ----------------------------------------------------------------

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop read what comes. Raises StreamError if another loop does."""
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._wire.socket, self._read)
        elif self._loop is not loop:
            raise StreamError("this engine serves another event loop")

    def _send(self, message: object) -> None:
        """Send at once, so that the engine begins while the next request is read; or after what must wait."""
        assert self._loop is not None
        is_waiting = bool(self._unsent)
        self._unsent += encoded(message)
        if not is_waiting:
            self._flush()
            if self._unsent:
                self._loop.add_writer(self._wire.socket, self._flush)

    def _flush(self) -> None:
        assert self._loop is not None
        try:
            del self._unsent[: self._wire.socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:  # the engine is in a long step
            pass
        except OSError:  # the other end is closed: `_read` tells
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._wire.socket)

    def _read(self) -> None:
        """Put what has come where it is waited for. If several steps have come meanwhile, a request's tokens
        of all of them go together, so that a consumer that is behind catches up."""
        messages = self._wire.receive(wait=False)
        if messages is None:
            return self._lose_engine()
        now, tokens, ends = time.perf_counter(), defaultdict[int, list[int]](list), dict[int, Any]()
        for numbers, made, ended, *stats in messages:
            for number, token in zip(numbers, made, strict=True):
                tokens[number].append(token_of(token))
            ends.update(ended)
            if stats:
                self._stats = stats[0]
        for number in tokens.keys() | ends.keys():
            pending, new = self._pending[number], tuple(tokens[number])
            pending.token_ids += new
            pending.times += [now] * len(new)
            if number in ends:
                self._end_as(pending, new, ends[number])
            else:
                pending.queue.put_nowait((new, None))

    def _end_as(self, pending: Pending, token_ids: tuple[int, ...], end: list[Any] | None) -> None:
        """Nothing comes after these tokens. end: [finish reason, error, when it was admitted], [class, text]
        of an error, or None where the consumer has left."""
        match end:
            case None:
                self._end(pending, None)
            case [kind, said]:
                if token_ids:
                    pending.queue.put_nowait((token_ids, None))
                self._end(pending, error_of(kind, said))
            case [reason, error, admitted]:
                completion = Completion(
                    pending.request_id,
                    pending.prompt,
                    tuple(pending.token_ids),
                    FinishReason(reason),
                    Timing(pending.submitted, admitted, tuple(pending.times)),
                    self.voice.tokenizer,
                    error,
                    pending.params.stop,
                )
                self._end(pending, (token_ids, completion))

    def _end(self, pending: Pending, last: Item) -> None:
        # In this order: a consumer that has the last item may submit again at once.
        self._pending.pop(pending.request_id, None)
        pending.queue.put_nowait(last)

    def _lose_engine(self) -> None:
        """The other end is closed: nobody is left waiting."""
        assert self._loop is not None
        self._is_closed = True
        self._loop.remove_reader(self._wire.socket)
        self._loop.remove_writer(self._wire.socket)
        self._wire.socket.close()
        for pending in list(self._pending.values()):
            had = f"{len(pending.token_ids)} token{'s' * (len(pending.token_ids) != 1)}"
            gone = f"the engine's process has ended when this request had {had}"
            self._end(pending, StreamError(gone))

    def close(self) -> None:
        """Cancel what is unfinished and end the engine's process, after the step that it is in, or after
        SECONDS_TO_END. A second call does nothing. Any thread may call this; the loop's holds up its streams.

        A stream that is cut short gives what it has and then raises StreamError.
        """
        with self._closing:
            self._is_closed = True
            with contextlib.suppress(OSError):
                self._wire.socket.shutdown(socket.SHUT_WR)  # the host tells each stream, and ends
            if self.process is not None:
                try:
                    self.process.wait(SECONDS_TO_END)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self._pool.shutdown(cancel_futures=True)
