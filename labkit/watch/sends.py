"""What the host sends to a device that keeps the state of each request itself (rung 06 and above)."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
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


def record_sends(engine: InferenceEngine, num_steps: int) -> Sends:
    """Run `num_steps` steps and note what the device is sent. Tokens made are not kept.

    Raises ValueError if the engine keeps no state on the device.
    """
    step = engine.decode_step
    if not isinstance(step, ResidentDecodeStep):
        raise ValueError(f"block_tables = {engine.options.block_tables!r} keeps no state on the device")
    slots, block_size = step.slots, step.kv_manager.block_size
    of_requests: list[tuple] = []
    of_steps: list[tuple] = []
    sent: dict[str, list] = {}  # since the last update, by what sends it
    updates: list[tuple] = []  # the arguments of the update whose sends are not delivered yet
    number = 0

    def begin(*update: object) -> None:
        sent.clear()
        updates[:] = [update]

    def delivering(inner: Callable[[], None]) -> Callable[[], None]:
        def deliver() -> None:
            inner()
            if updates:  # else a steady batch's rows, without an update
                note(*updates.pop())

        return deliver

    def note(
        requests: Sequence[Request], sessions: Sequence[InferenceSession], changed: Sequence[Sequence[int]]
    ) -> None:
        states, rows, copies = (sent.get(name, []) for name in ("send_states", "send_rows", "copies"))
        of_steps.append((number, "send_mapping" in sent, len(states), len(rows), len(copies), sum(copies)))
        dirty = {place for places in changed for place in places}
        for place, (request, session) in enumerate(zip(requests, sessions, strict=True)):
            took = "in_place"
            if place in dirty:
                took = "copy_on_write" if session.num_tokens % block_size else "boundary"
            what = "joined" if request in states else took if session in rows else "nothing"
            about = (request.request_id, slots.slot_of[session], session.num_tokens, took, what)
            of_requests.append((number, *about))

    def keep(name: str, what: Sequence) -> None:
        sent[name] = list(what)

    def count(numbers: Tensor, *_: object) -> None:
        sent.setdefault("copies", []).append(numbers.nbytes)

    with ExitStack() as stack:
        for name in ("send_mapping", "send_states", "send_rows"):
            stack.enter_context(replaced(slots, name, noting(partial(keep, name))))
        stack.enter_context(replaced(slots.staging, "send", noting(count)))
        stack.enter_context(replaced(slots, "update", noting(begin)))
        stack.enter_context(replaced(slots, "deliver", delivering))
        for _ in range(num_steps):
            number += 1
            engine.step()
    return Sends(pd.DataFrame(of_requests, columns=OF_REQUESTS), pd.DataFrame(of_steps, columns=OF_STEPS))
