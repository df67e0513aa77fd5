"""Lesson 06: rows that are sent too late, room that is made too late, and a step that fails."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import pandas as pd

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
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


class RoomAfterTheStep:
    """Launches steps, but makes room after the forward, where rung 05 makes it, and tells the device in the
    next step; for demonstration. A write at a block's boundary then has no block."""

    def __init__(self, step: ResidentDecodeStep) -> None:
        self.step = step
        self._changed: list[list[int]] = []

    def launch(self, running: RunningRequests) -> StepInFlight:
        """Launch a step, and make room for its tokens behind it."""
        step, requests, sessions = self.step, list(running), list(running.values())
        step.slots.update(requests, sessions, self._changed)
        step.slots.deliver()
        longest = max(session.num_tokens for session in sessions)
        tokens = step.pinned_tokens.start_copy(step.device_step(len(sessions), longest, True))
        self._changed = [
            step.kv_manager.reserve_token_batch(i, [session.block_ids_per_layer[i] for session in sessions])
            for i in range(step.kv_manager.num_tables)
        ]
        for session in sessions:
            session.num_tokens += 1
        return StepInFlight(step, requests, sessions, tokens)


def room_after_the_step(engine: InferenceEngine) -> AbstractContextManager:
    """A context in which the engine launches as `RoomAfterTheStep` does."""
    return replaced(engine.decode_step, "launch", lambda _: RoomAfterTheStep(engine.decode_step).launch)


def overwritten(engine: InferenceEngine, layer_idx: int = 0) -> list[str]:
    """Run one step, and list the places of a layer that held a token before it and hold another key after
    it."""
    manager = engine.kv_manager
    live, before = manager.live_slots()[layer_idx], manager.k_cache[layer_idx].clone()
    holders = {
        manager.info(block_id).block_index: request.request_id
        for request, session in engine.scheduler.running.items()
        for block_id in session.block_ids_per_layer[layer_idx]
    }
    engine.step()
    changed = (manager.k_cache[layer_idx] != before).any(dim=3).any(dim=1) & live  # [N, block_size]
    return [
        f"place {t} of block {n}, which request {holders[n]} holds" for n, t in changed.nonzero().tolist()
    ]


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
