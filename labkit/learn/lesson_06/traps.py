"""Lesson 06: rows that are sent too late, and a step that fails."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress

import pandas as pd

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.slots import DeviceSlots
from labkit.kvcache import KVBlockManager
from labkit.watch import PlantedError, planted_failure, replaced


class LateRows(DeviceSlots):
    """Slots that are wrong on purpose: where a list of blocks has changed, the row is sent a step later."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._due: set[InferenceSession] = set()

    def update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        """Send what a step of these requests needs, but in place of its rows those of the step before."""
        due = [b for b, session in enumerate(sessions) if session in self._due]
        self._due = {sessions[b] for places in changed for b in places if self.knows(sessions[b])}
        super().update(requests, sessions, [due])

    def forget(self, sessions: Collection[InferenceSession]) -> None:
        """These join anew at the next step, each with its row."""
        super().forget(sessions)
        self._due.difference_update(sessions)


def fail_after_the_device(engine: InferenceEngine, forgets: bool) -> pd.DataFrame:
    """Let the engine's next step fail after the device has done its work. Returns the length of each running
    request before the step and after it, as the host has it and as the device has it.

    forgets: whether the device's state is given up, as the package does.
    """
    slots = engine.decode_step.slots
    sessions = {r.request_id: session for r, session in engine.scheduler.running.items()}
    slot_of = dict(slots.slot_of)
    lengths = {}

    def look(when: str) -> None:
        lengths[f"host, {when}"] = {i: session.num_tokens for i, session in sessions.items()}
        of_device = {i: int(slots.context_lens[slot_of[session]]) for i, session in sessions.items()}
        lengths[f"device, {when}"] = of_device

    look("before")
    fault = planted_failure(engine.decode_step.pinned_tokens, "start_copy")  # the tokens are not copied
    forgetting = nullcontext() if forgets else replaced(slots, "forget", lambda _: lambda _: None)
    with suppress(PlantedError), fault, forgetting:
        engine.step()
    look("after")
    table = pd.DataFrame(lengths)
    table["has a slot"] = [session in slots.slot_of for session in sessions.values()]
    return table.rename_axis("request")


def finish(engine: InferenceEngine) -> dict[int, list[int]]:
    """Step until there is no work left. Returns the tokens handed out, by request id."""
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            tokens.setdefault(output.request_id, []).append(output.token_id)
    return tokens
