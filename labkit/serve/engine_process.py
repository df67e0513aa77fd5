"""The process that has the model and the engine: it steps, and tells the server's process what came of it.

Nothing else runs here, so no socket, no JSON of a client and no text waits for the engine, nor it for them.
"""

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.config import FITTED
from labkit.engine.delivery import StepOutputs
from labkit.engine.streaming.worker import Item, Submission, Worker
from labkit.errors import LabkitError
from labkit.ladder import LADDER
from labkit.model import load_model
from labkit.serve.wire import Made, Wire, introduction

TELL_STATS_EVERY = 0.1  # seconds
LOOK_AFTER_PARENT_EVERY = 0.5  # seconds
FRAME_EVERY = 5.0  # milliseconds; a screen shows a new picture every 7 to 16


@dataclass(frozen=True)
class EngineSettings:
    """Which engine is made, and how often its streams get tokens, in milliseconds: the server's flags."""

    model: str
    rung: str
    device: str | None = None
    max_batch_size: int = FITTED
    max_blocks: int = FITTED
    max_positions: int = FITTED
    frame_every: float = FRAME_EVERY

    def make_engine(self) -> InferenceEngine:
        """The engine. Raises what `load_model` and `InferenceEngine` do."""
        return InferenceEngine(
            load_model(self.model),
            LADDER[self.rung].options,
            device=self.device,
            cache=CacheConfig(max_blocks_per_layer=self.max_blocks, max_positions=self.max_positions),
            scheduler=SchedulerConfig(max_batch_size=self.max_batch_size),
        )


class ToOtherProcess:
    """In place of a request's queue: its consumer is in the other process."""

    def __init__(self, number: int, made: Made) -> None:
        self.number, self._made = number, made

    def put_nowait(self, item: Item) -> None:
        """Have it sent with the step's message."""
        self._made.add(self.number, item)


class EngineHost(Worker):
    """Drives an engine for another process: one message has the new tokens of all requests, and what that
    process asks for is read at once between two steps. It ends when the other end is closed.

    A request's first token and its end are told with their step; the tokens between them, those of all
    requests together, with the first step that ends so many milliseconds, `frame_every`, after the last ones
    were. To send and to read the frames of many readers takes longer than a fast engine's step, so with a
    frame for each token, they fall behind.
    """

    def __init__(self, engine: InferenceEngine, end: socket.socket, frame_every: float = FRAME_EVERY) -> None:
        super().__init__(engine, stream_interval=sys.maxsize)  # `hand_over` says when
        self._every, self._due = frame_every / 1e3, 0.0
        self._wire = Wire(end)
        self._submissions: dict[int, Submission] = {}  # unfinished, by the other's numbers
        self._made = Made()
        self._told_at = 0.0
        self._wire.send(introduction(repr(engine), engine.model.voice, engine.limits, engine.stats()))

    def read_inbox(self) -> bool:
        """Do all that was asked for, and sleep while no request runs; False when the other process went."""
        while not self.quitting:
            messages = self._wire.receive(wait=not self.running)
            if messages is None:
                return False
            for number, *request in messages:
                if request:
                    self._take(number, *request)
                elif number in self._submissions:  # else it has ended meanwhile
                    self._leave(self._submissions[number])
            if self.running:
                return True
            self.deliver()
        return False

    def _take(self, number: int, token_ids: Sequence[int], params: dict[str, Any]) -> None:
        """A request: [its number, its prompt, its SamplingParams]."""
        submission = Submission(ToOtherProcess(number, self._made))
        self._submissions[number] = submission
        self.register(submission, limit=None)  # which the other process keeps
        self.add(submission, tuple(token_ids), SamplingParams(**params))

    def _leave(self, submission: Submission) -> None:
        """The consumer of a request has left: [its number]."""
        self.cancel(submission)
        if submission.request_id not in self.running:  # else it had ended, and its end is still to come
            submission.queue.put_nowait(None)

    def forget(self, submission: Submission) -> None:
        super().forget(submission)
        self._submissions.pop(submission.queue.number, None)

    def hand_over(self, outputs: StepOutputs) -> None:
        """Have what is due sent. Between two ends, nothing but lists is touched: the next step waits."""
        if outputs.completions:
            super().hand_over(outputs)
        else:
            for request_id, token_id in zip(outputs.request_ids, outputs.token_ids, strict=True):
                self.running[request_id].unsent.append(token_id)  # type: ignore[arg-type]  # it lacks none
        now = time.perf_counter()
        if is_due := now >= self._due:
            self._due = now + self._every
        for submission in map(self.running.get, self.running if is_due else outputs.request_ids):
            if submission and submission.unsent and (is_due or not submission.num_sent):
                self._made.add_tokens(submission.queue.number, submission.unsent)
                submission.num_sent += len(submission.unsent)
                submission.unsent = []

    def deliver(self) -> None:
        """Send everything in one message; the engine's state with it now and then, and before sleeping."""
        now = time.perf_counter()
        is_due = now - self._told_at > TELL_STATS_EVERY
        if not self._made and not is_due:
            return
        message = self._made.take()
        if is_due or not self.running:
            self._told_at = now
            message.append(asdict(self.engine.stats()))
        self._wire.send(message)


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent, whatever it is doing, and however that was ended."""
    while os.getppid() == parent:
        time.sleep(LOOK_AFTER_PARENT_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)


def keep_all_there_is() -> None:
    """Have Python's garbage collector leave alone what this process has loaded: to look through PyTorch's
    modules takes it a few tenths of a second, for which every stream would wait."""
    gc.collect()
    gc.freeze()


def main() -> None:
    """Make the engine that the first message asks for, and drive it until the other process is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the server, which lets answers end
    parent, descriptor = map(int, sys.argv[1:])
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    wire = Wire(socket.socket(fileno=descriptor))
    settings = wire.first()
    if settings is None:
        return
    try:
        engine = EngineSettings(**settings).make_engine()
    except LabkitError as error:
        wire.send({"refused": str(error)})
        return
    keep_all_there_is()
    host = EngineHost(engine, wire.socket, settings["frame_every"])
    host.start()
    host.thread.join()
    if engine.guard.is_broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
