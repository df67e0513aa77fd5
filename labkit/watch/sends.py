"""What the host sends to a device that keeps the state of each request itself (rung 06 and above)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import pandas as pd
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.watch.replaced import noting, replaced

OF_REQUESTS = ("step", "request", "slot", "tokens", "took", "sent")
OF_STEPS = ("step", "mapping", "states", "rows", "copies", "bytes")


@dataclass(frozen=True)
class Sends:
    """What was sent in each decode step.

    requests: a line per request and step: its slot, the tokens it held when the step began, how the
    block of its next token was made ready, and what was sent for it: "nothing", "boundary", "copy_on_write"
    or "joined". steps: a line per step: whether the mapping was sent, how many states and rows, and how many
    copies and bytes that took.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame


class SendWatch:
    """Notes, step by step, how a `DeviceSlots` is updated and what it sends."""

    def __init__(self, step: ResidentDecodeStep) -> None:
        self.slots, self.block_size = step.slots, step.kv_manager.block_size
        self.requests: list[tuple] = []
        self.steps: list[tuple] = []
        self.step_number = 0
        self._sent: dict[str, list] = {}
        self._updated: tuple | None = None  # the arguments of an update whose sends are not delivered yet

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, note every update of the slots and all that it sends."""
        with ExitStack() as stack:
            for name in ("send_mapping", "send_states", "send_rows"):
                stack.enter_context(replaced(self.slots, name, noting(partial(self._keep, name))))
            stack.enter_context(replaced(self.slots.staging, "send", noting(self._count)))
            stack.enter_context(replaced(self.slots, "update", noting(self._begin)))
            stack.enter_context(replaced(self.slots, "deliver", self._delivering))
            yield

    def _keep(self, name: str, sent: Collection) -> None:
        self._sent[name] = list(sent)

    def _count(self, numbers: Tensor) -> None:
        self._sent.setdefault("copies", []).append(numbers.nbytes)

    def _begin(self, *updated: object) -> None:
        self._sent, self._updated = {}, updated

    def _delivering(self, inner: Callable[[], None]) -> Callable[[], None]:
        def deliver() -> None:
            inner()
            if self._updated is not None:  # else a steady batch's rows, without an update
                self._note(*self._updated)
                self._updated = None

        return deliver

    def _note(
        self,
        requests: Sequence[Request],
        sessions: Sequence[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        states, rows, copies = (self._sent.get(name, []) for name in ("send_states", "send_rows", "copies"))
        counts = ("send_mapping" in self._sent, len(states), len(rows), len(copies), sum(copies))
        self.steps.append((self.step_number, *counts))
        dirty = {place for places in changed for place in places}
        for place, (request, session) in enumerate(zip(requests, sessions, strict=True)):
            took = "in_place"
            if place in dirty:
                took = "copy_on_write" if session.num_tokens % self.block_size else "boundary"
            sent = "joined" if request in states else took if session in rows else "nothing"
            about = (request.request_id, self.slots.slot_of[session], session.num_tokens, took, sent)
            self.requests.append((self.step_number, *about))


def record_sends(engine: InferenceEngine, num_steps: int) -> Sends:
    """Run `num_steps` steps and note what the device is sent. Tokens made are not kept.

    Raises ValueError if the engine keeps no state on the device.
    """
    if not isinstance(engine.decode_step, ResidentDecodeStep):
        raise ValueError(f"block_tables = {engine.options.block_tables!r} keeps no state on the device")
    watch = SendWatch(engine.decode_step)
    with watch.watching():
        for number in range(1, num_steps + 1):
            watch.step_number = number
            engine.step()
    return Sends(
        pd.DataFrame(watch.requests, columns=OF_REQUESTS), pd.DataFrame(watch.steps, columns=OF_STEPS)
    )
