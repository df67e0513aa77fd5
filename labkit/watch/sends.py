"""What the host tells the device, step by step: rows of block tables, writes of keys and values, sends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.kvcache import CachedBlockTables
from labkit.watch.replaced import noting, replaced
from labkit.watch.steady import steady_decode

# --- rows of the block table: which are made anew, and why (rungs 01 to 05) -----------------------------

COLUMNS = ("step", "request", "layer", "tokens", "blocks", "reason")


def reason_of(before: Sequence[int] | None, after: Sequence[int]) -> str:
    """Why a row was kept, or made anew, while its blocks became others: "first", "kept", "boundary" or
    "copy_on_write"."""
    if before is None:
        return "first"
    if before == after:
        return "kept"
    return "boundary" if len(after) > len(before) else "copy_on_write"


def record_rows(engine: InferenceEngine, num_steps: int) -> pd.DataFrame:
    """Run `num_steps` steps; a line per row that a decode step asked for, for every request and layer.

    `tokens` and `blocks` are what the request held when the step began; `reason` is what `reason_of` says of
    its blocks. Tokens made are not kept. A row that was made before the recording began counts as first when
    it is seen first. Raises ValueError if the engine's sessions keep no rows.
    """
    step = engine.decode_step
    tables = step.block_tables if isinstance(step, DecodeStep) else None
    if not isinstance(tables, CachedBlockTables):
        raise ValueError(f"an engine with block_tables={engine.options.block_tables!r} keeps no rows")
    seen: dict[tuple[int, int], list[int]] = {}  # by request and layer: its blocks
    lines = []
    steps_before = engine.stats().counters.steps

    def on_fill(_: Tensor, sessions: Sequence[InferenceSession]) -> None:
        step = engine.stats().counters.steps - steps_before
        ids = {session: r.request_id for r, session in engine.scheduler.running.items()}
        for session in sessions:
            for layer_idx, block_ids in enumerate(session.block_ids_per_layer):
                key = ids[session], layer_idx
                reason = reason_of(seen.get(key), block_ids)
                seen[key] = list(block_ids)
                lines.append((step, *key, session.num_tokens, len(block_ids), reason))

    with replaced(tables, "fill", noting(on_fill)):
        for _ in range(num_steps):
            engine.step()
    return pd.DataFrame(lines, columns=COLUMNS)


# --- writes, and all that is told, when all state is the host's (up to rung 05) ----------------------------


@dataclass(frozen=True)
class Write:
    """One layer's K/V write: the batch index, block and position of each request, and the path it took."""

    batch_idx: tuple[int, ...]
    block_idx: tuple[int, ...]
    pos: tuple[int, ...]
    path: str

    @property
    def told(self) -> dict[str, tuple[int, ...] | int]:
        """The indices that reach the kernel on this path: tensors as tuples, arguments as numbers."""
        if self.path == "full_batch":
            return {"block_idx": self.block_idx, "pos": self.pos[0]}
        if self.path == "identity_pos":
            return {"block_idx": self.block_idx, "pos": self.pos}
        return {"batch_idx": self.batch_idx, "block_idx": self.block_idx, "pos": self.pos}


@contextmanager
def record_writes(engine: InferenceEngine) -> Iterator[list[Write]]:
    """Record the K/V writes that an engine makes inside the block, one per layer and step."""
    writes: list[Write] = []

    def recording(inner: Callable[..., str]) -> Callable[..., str]:
        def write(*arguments: Any) -> str:  # those of a `KVWrite`, whose last three are the indices
            path = inner(*arguments)
            batch_idx, block_idx, pos = map(tuple, arguments[-3:])
            writes.append(Write(batch_idx, block_idx, pos, path))
            return path

        return write

    with replaced(engine.kv_manager.kv_write, "write", recording):
        yield writes


def steady_write(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> Write:
    """The first layer's write in a decode step of these prompts, on blocks that were used before."""
    with steady_decode(engine, prompts):
        pass  # these give their blocks back, and the last to go back is the first to be used again
    with steady_decode(engine, prompts, warmup_steps=0), record_writes(engine) as writes:
        engine.step()
    return writes[0]


Told = dict[str, list[int]]  # numbers by what they are; those of the layers one after the other


def record_inputs(engine: InferenceEngine, num_steps: int) -> list[Told]:
    """Run `num_steps` decode steps of an engine whose state is the host's; all numbers that each step sends.

    Raises ValueError for an engine of rung 06 or above.
    """
    step = engine.decode_step
    if not isinstance(step, DecodeStep):
        raise ValueError(
            "an engine whose state is on the device tells it other things; see watch.record_sends"
        )
    told: list[Told] = []

    def on_decode(sessions: Sequence[InferenceSession], last_token_ids: Sequence[int]) -> None:
        lengths = [session.num_tokens for session in sessions]
        now: Told = {"block tables": []}
        now |= {"context lengths": lengths, "token ids": list(last_token_ids), "positions": lengths}
        told.append(now)

    def building(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def build(sessions: Sequence[InferenceSession]) -> Tensor:
            tables = inner(sessions)
            told[-1]["block tables"] = tables.flatten().tolist()
            return tables

        return build

    decoding = replaced(step, "decode_step_sessions", noting(on_decode))
    with decoding, replaced(step.block_tables, "build", building):
        for _ in range(num_steps):
            with record_writes(engine) as writes:
                engine.step()
            for write in writes:
                for name, numbers in write.told.items():
                    if not isinstance(numbers, int):  # a number is an argument of the kernel
                        told[-1].setdefault(f"{name} of each layer", []).extend(numbers)
    return told


# --- sends to a device that keeps the state of each request itself (rung 06 and above) ---------------------

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
