"""Lesson 06: the numbers that the device is told, or knows already; what breaks their order; and the
exercises."""

import copy
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.request import RunningRequests
from labkit.engine.sampling import as_int64, sample, sample_any, uniform_number
from labkit.engine.sampling.device import NO_TOKEN
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.learn.exercise import BrokenContract, Case, Exercise, check_unchanged
from labkit.results import CostCardRecord, HostTimeRecord, StepProfile, counts_table
from labkit.watch import PlantedError, planted_failure, record_inputs, record_sends, replaced
from labkit.watch.inputs import Told

# --- what rung 05 tells the GPU in a step -------------------------------------------------------------


def news(before: Told, now: Told, picked: Sequence[int], block_size: int) -> pd.DataFrame:
    """How many of the numbers that a step tells the device it could have known, a row per kind of number.

    before: what the device was told a step earlier, of the same requests. picked: the tokens it made then.
    """
    rows = {}
    for name, numbers in now.items():
        new = np.array(numbers)
        if name == "token ids":
            made = new == np.array(picked)
            counts = {"its own tokens": made.sum(), "new to it": (~made).sum()}
        else:
            old = np.array(before[name])
            same = new == old
            next_one = ~same & ((new == old + 1) | ((new == 0) & (old == block_size - 1)))
            if "block" in name:  # a block's number is no count
                next_one[:] = False
            counts = {"as before": same.sum(), "one more": next_one.sum()}
            counts["new to it"] = len(new) - sum(counts.values())
        rows[name] = {"numbers": len(new), **counts}
    columns = ["numbers", "as before", "one more", "its own tokens", "new to it"]
    table = pd.DataFrame(rows).T.reindex(columns=columns).fillna(0).astype(int)
    table.loc["all"] = table.sum()
    return table


def last_tokens(engine: InferenceEngine) -> list[int]:
    """The newest token of each running request."""
    return [request.output_token_ids[-1] for request in engine.scheduler.running]


def sent_until_done(engine: InferenceEngine) -> pd.DataFrame:
    """Run an engine of any rung until no work is left: copies and numbers that the host sends, a row per
    decode step."""
    steps = []
    while engine.has_work:
        if isinstance(engine.decode_step, DecodeStep):
            for told in record_inputs(engine, num_steps=1):
                tensors = [engine.kv_manager.num_layers if "layer" in name else 1 for name in told]
                steps.append({"copies": sum(tensors), "numbers": sum(map(len, told.values()))})
        else:
            steps += record_sends(engine, num_steps=1).steps[["copies", "numbers"]].to_dict("records")
    return pd.DataFrame(steps)


def copy_costs(profile: StepProfile) -> dict[str, float]:
    """The small host-to-device copies of a profiled step: how many, the median time of one on the GPU, and
    the median time from the start of one to that of the next."""
    copies = sorted((k for k in profile.kernels if k.name.startswith("Memcpy HtoD")), key=lambda k: k.start)
    small = copies[1:]  # the first is the block tables'
    return {
        "small copies": len(small),
        "us of the GPU, each": round(median(copy.duration for copy in small), 1),
        "us from one to the next": round(float(np.median(np.diff([copy.start for copy in small]))), 1),
    }


# --- what the device knows ----------------------------------------------------------------------------


def slots_table(engine: InferenceEngine, layer_idx: int = 0) -> pd.DataFrame:
    """A row per slot: what the device holds of it in layer `layer_idx`, and what the host knows of its
    request."""
    slots = engine.decode_step.slots
    of_slot = {slots.slot_of.get(s): (request, s) for request, s in engine.scheduler.running.items()}
    rows = {}
    for slot in range(slots.padding_slot + 1):
        rows[slot] = {
            "request": "none: for padding" if slot == slots.padding_slot else "",
            "block table": str(slots.block_tables[layer_idx, slot, :4].tolist())[:-1] + ", ...]",
            "context_lens": int(slots.context_lens[slot]),
            "last_token_ids": int(slots.last_token_ids[slot]),
            "host: tokens, last token": "",
        }
        if slot in of_slot:
            request, session = of_slot[slot]
            rows[slot]["request"] = str(request.request_id)
            state = f"{session.num_tokens}, {request.output_token_ids[-1]}"
            rows[slot]["host: tokens, last token"] = state
    return pd.DataFrame(rows).T.rename_axis("slot")


# --- room before the write, or after it ---------------------------------------------------------------


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
    return [f"block {n}, slot {t}, of request {holders[n]}" for n, t in changed.nonzero().tolist()]


# --- a step that fails when the device has done its work ----------------------------------------------


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


# --- copies that run late -----------------------------------------------------------------------------


class Copy:
    """An asynchronous copy of a `LateDevice`."""

    def __init__(self, device: "LateDevice", buffer: list[int], num_numbers: int, number: int) -> None:
        self._device, self._buffer, self._num_numbers, self.number = device, buffer, num_numbers, number

    def wait(self) -> None:
        """Return when this copy has been made, and all copies before it."""
        self._device.run_until(self)

    def read_buffer(self) -> list[int]:
        """The numbers that lie in the buffer now."""
        return self._buffer[: self._num_numbers]


class LateDevice:
    """A device whose asynchronous copies read their buffers late, in the order in which they were asked for.

    late_by: how many copies may be under way; asking for one more runs the oldest. 0: each runs at once;
    None: as late as possible, when it is waited for.
    """

    def __init__(self, late_by: int | None = None) -> None:
        self._late_by = late_by
        self._under_way: list[Copy] = []
        self.arrived: list[list[int]] = []
        self.waited: list[int] = []  # the numbers of the copies that were still under way when waited for

    def copy(self, buffer: list[int], num_numbers: int) -> Copy:
        """Ask for a copy of the first `num_numbers` of a buffer. The call returns at once."""
        copy = Copy(self, buffer, num_numbers, len(self.arrived) + len(self._under_way))
        self._under_way.append(copy)
        while self._late_by is not None and len(self._under_way) > self._late_by:
            self._run_oldest()
        return copy

    def run_until(self, copy: Copy) -> None:
        """Run copies, oldest first, until this one has been made."""
        if copy in self._under_way:
            self.waited.append(copy.number)
        while copy in self._under_way:
            self._run_oldest()

    def finish(self) -> None:
        """Run all copies that are under way."""
        while self._under_way:
            self._run_oldest()

    def _run_oldest(self) -> None:
        self.arrived.append(self._under_way.pop(0).read_buffer())


Buffers = list[list[int]]
SendAll = Callable[[list[list[int]], Buffers, Callable[[list[int], int], Copy]], None]


def one_buffer(messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]) -> None:
    """Send all messages from one buffer without waiting for its copies, as the public code does that the
    write-ups describe."""
    for numbers in messages:
        buffers[0][: len(numbers)] = numbers
        copy(buffers[0], len(numbers))


def two_without_waiting(
    messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]
) -> None:
    """Send all messages from two buffers in turn, without waiting for their copies."""
    for i, numbers in enumerate(messages):
        buffer = buffers[i % 2]
        buffer[: len(numbers)] = numbers
        copy(buffer, len(numbers))


def send_all(messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]) -> None:
    """Send all messages from two buffers in turn, as `PinnedStaging.send` does: before a buffer is written
    again, its copy is waited for."""
    copied: list[Copy | None] = [None, None]
    for i, numbers in enumerate(messages):
        turn = i % 2
        if copied[turn] is not None:
            copied[turn].wait()
        buffers[turn][: len(numbers)] = numbers
        copied[turn] = copy(buffers[turn], len(numbers))


# Ways to send messages through pinned buffers, by name.
STAGINGS: dict[str, SendAll] = {
    "one buffer, nobody waits": one_buffer,
    "two buffers, nobody waits": two_without_waiting,
    "two buffers, each waits for its own copy": send_all,
}


def messages_spoilt(num_messages: int, late_by: Sequence[int | None]) -> pd.DataFrame:
    """How many of `num_messages` arrive wrong, a row per way of staging, a column per lateness of the
    copies."""
    messages = [[i] for i in range(num_messages)]
    table = {}
    for lateness in late_by:
        column = "as late as may be" if lateness is None else f"{lateness} late"
        table[column] = {}
        for name, staging in STAGINGS.items():
            device = LateDevice(lateness)
            staging(messages, [[-1], [-1]], device.copy)
            device.finish()
            wrong = sum(got != sent for got, sent in zip(device.arrived, messages, strict=True))
            table[column][name] = wrong
    return pd.DataFrame(table)


# --- sampling -----------------------------------------------------------------------------------------

MANNERS = {  # of sampling, by name: the settings of `SamplingParams`
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "all three": {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
}


def sampled_both_ways(device: torch.device, rows_each: int = 50, vocab_size: int = 300) -> pd.DataFrame:
    """Compare the tokens that the host's sampler and the device's draw from random logits, a row per manner
    of sampling. All manners are in one batch, and each has a row of logits with a NaN."""
    names = [name for name in MANNERS for _ in range(rows_each)]
    params = [SamplingParams(seed=7 * b - 99, **MANNERS[name]) for b, name in enumerate(names)]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(names), vocab_size, generator=generator).to(device)
    logits[::rows_each, 5] = torch.nan
    places = [b % 40 for b in range(len(names))]  # how many numbers each row has drawn
    uniforms = [uniform_number(p.seed, i) for p, i in zip(params, places, strict=True)]
    on_host = sample(logits, params, uniforms)

    def column(numbers: list, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype, device=device)

    on_device = sample_any(
        logits,
        column([p.temperature for p in params], torch.float64),
        column([p.top_k for p in params], torch.int64),
        column([p.top_p for p in params], torch.float64),
        column([as_int64(p.seed) for p in params], torch.int64),
        column(places, torch.int64),
    ).tolist()
    rows = {}
    for name in MANNERS:
        pairs = [(h, d) for n, h, d in zip(names, on_host, on_device, strict=True) if n == name]
        rows[name] = {
            "rows": len(pairs),
            "the same token": sum(h == d for h, d in pairs),
            "None on the host, -1 on the device": sum(h is None and d == NO_TOKEN for h, d in pairs),
            "different tokens": len({h for h, _ in pairs}),
        }
    return pd.DataFrame(rows).T


# --- records ------------------------------------------------------------------------------------------

COUNTS = {  # counts of a cost card: their words in a table
    "index_tensors": "index tensors constructed",
    "h2d_copies": "host-to-device copies",
    "h2d_bytes": "host-to-device bytes",
    "h2d_synchronizing": "of the copies, synchronizing",
    "d2h_copies": "device-to-host copies",
    "synchronizations": "the host waits for the GPU",
    "manager_calls": "calls into KVBlockManager",
    "kernels": "kernels launched",
}


def recorded_counts(
    record: CostCardRecord, rungs: Sequence[str], batch_size: int, lengths: set[int]
) -> pd.DataFrame:
    """COUNTS of GPT-2's recorded decode step, a column per rung. lengths: of the prompts."""
    cards = record.cards(lengths)
    return counts_table({f"rung {rung}": cards[rung, batch_size] for rung in rungs}, COUNTS)


PARTS = ("block tables", "append", "the rest")  # of the host's step, up to rung 05
RESIDENT_PARTS = ("tell the device", "make room", "the rest")  # of the host's step, from rung 06 on


def host_parts(record: HostTimeRecord, rungs: Sequence[str], batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Median microseconds of a step's parts on the host, a row per rung and part, a column per batch size."""
    table: dict[str, dict] = {f"B = {b}": {} for b in batch_sizes}
    for rung in rungs:
        names = RESIDENT_PARTS if rung >= "06" else PARTS
        for b in batch_sizes:
            time = record.time(rung, b)
            lanes = (time.tables_us, time.append_us, time.rest_us, time.step_us)
            for name, us in zip((*names, "a step"), lanes, strict=True):
                table[f"B = {b}"][f"rung {rung}", name] = us
    return pd.DataFrame(table).round().astype(int).rename_axis(columns="microseconds")


# --- exercises ----------------------------------------------------------------------------------------


DEVICES = {"late": None, "one behind": 1, "prompt": 0}  # by how many copies may be under way


def play_send_all(attempt: SendAll, messages: list[list[int]], device: str) -> dict[str, Any]:
    """Call the attempt with two buffers and one of DEVICES, and return what arrives and which copies were
    waited for. Raises BrokenContract if it copies from anything but the two buffers as they are."""
    late_device = LateDevice(DEVICES[device])
    longest = max(map(len, messages))
    pinned = [[-1] * longest, [-1] * longest]
    given, buffers = copy.deepcopy(messages), list(pinned)

    def copied(buffer: list[int], n: int) -> Copy:
        if not any(buffer is own for own in pinned):
            if any(buffer is placed for placed in buffers):
                raise BrokenContract(
                    "it put a new list in the place of a buffer. That is new memory, which is not pinned: "
                    "write the numbers into the list that is there."
                )
            raise BrokenContract(
                "it asked for a copy of a list that is not one of the two buffers (a slice is a new list, "
                "too). The device reads pinned memory: use the buffers."
            )
        if len(buffer) != longest:
            raise BrokenContract(
                f"it made a buffer of {longest} numbers one of {len(buffer)}. Memory that is pinned has its "
                "size: overwrite as many numbers as the message has, and leave the rest."
            )
        return late_device.copy(buffer, n)

    attempt(messages=given, buffers=buffers, copy=copied)
    waited = list(late_device.waited)
    late_device.finish()
    check_unchanged({"messages": given}, {"messages": messages})
    return {"what arrives": late_device.arrived, "the copies that were waited for": waited}


def draw_send_all(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `send_all`: up to 12 messages of up to 4 numbers, and a device."""
    messages = [[rng.randrange(100) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 12))]
    return {"messages": messages, "device": rng.choice(("late", *DEVICES))}


FIVE = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]

SEND_ALL = Exercise(
    name="send_all",
    cases=(
        Case(
            {"messages": [[1, 2, 3]], "device": "late"},
            {"what arrives": [[1, 2, 3]]},
            "Put the numbers into a buffer, then ask for a copy of as many as there are.",
        ),
        Case(
            {"messages": [[1, 2, 3]], "device": "prompt"},
            {"what arrives": [[1, 2, 3]]},
            "This device copies as soon as it is asked: the numbers must be in the buffer before that.",
        ),
        Case(
            {"messages": FIVE[:2], "device": "late"},
            {"what arrives": FIVE[:2]},
            "Nothing has been read yet when `copy` returns. The second message went into the buffer of the "
            "first, whose copy was under way: let the buffers take turns.",
        ),
        Case(
            {"messages": FIVE[:2], "device": "late"},
            {"the copies that were waited for": []},
            "Neither buffer has a copy under way when it is first written, so there is nothing to wait for, "
            "and nobody has to wait at the end.",
        ),
        Case(
            {"messages": FIVE[:3], "device": "late"},
            {"what arrives": FIVE[:3]},
            "The third message meets the first buffer again. Its last copy must be over before you write to "
            "it: keep what `copy` returns, and `wait` for it.",
        ),
        Case(
            {"messages": FIVE, "device": "late"},
            {"the copies that were waited for": [0, 1, 2]},
            "Two buffers let one copy go on while you fill the other. Wait for the last copy of the buffer "
            "that you write to, not for the newest copy, and leave the last two under way.",
        ),
        Case(
            {"messages": [[1, 2, 3], [4], [5], [6, 7]], "device": "late"},
            {"what arrives": [[1, 2, 3], [4], [5], [6, 7]]},
            "A buffer is as long as the longest message. Copy as many numbers as this message has, not what "
            "an earlier one left behind them.",
        ),
    ),
    solution=send_all,
    draw=draw_send_all,
    drawn_hint="The buffers take turns, and each waits for its own last copy before it is written again.",
    play=play_send_all,
)


def what_is_sent(mapped: list[str], running: list[str], changed: list[int]) -> dict[str, object]:
    """What a step sends to the device. mapped: the requests that `slot_mapping` names; running: this step's
    requests; changed: the places in `running` of the requests with a changed list of blocks."""
    joined = [name for name in running if name not in mapped]
    dirty = [name for place, name in enumerate(running) if place in changed or name in joined]
    return {"mapping": running != mapped, "states": joined, "rows": dirty}


def _sent(mapping: bool, states: str, rows: str) -> dict[str, object]:
    return {"mapping": mapping, "states": list(states), "rows": list(rows)}


def _step_of(mapped: str, running: str, *changed: int) -> dict[str, object]:
    return {"mapped": list(mapped), "running": list(running), "changed": list(changed)}


def draw_what_is_sent(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `what_is_sent`: some requests leave, join or trade places, and some lists of blocks
    change."""
    names = rng.sample("ABCDEFG", 7)
    mapped = names[: rng.randrange(5)]
    running = [name for name in mapped if rng.random() < rng.choice((0.5, 1))]
    running += names[4 : rng.choice((4, 4, 5, 6, 7))]
    if rng.random() < 0.2:
        rng.shuffle(running)
    changed_places = rng.sample(range(len(running)), rng.randrange(len(running) + 1))
    return _step_of("".join(mapped), "".join(running), *changed_places)


WHAT_IS_SENT = Exercise(
    name="what_is_sent",
    cases=(
        Case(
            _step_of("ABC", "ABC"),
            _sent(False, "", ""),
            "The same requests, and no list of blocks changed: the device knows all it needs.",
        ),
        Case(
            _step_of("ABC", "ABC", 1),
            _sent(False, "", "B"),
            "B took a block. Its row is dirty, and only its row: lengths and tokens the device has counted "
            "itself.",
        ),
        Case(
            _step_of("AB", "ABC"),
            _sent(True, "C", "C"),
            "C joins in place, with no change to its list of blocks in this step. Still the device has never "
            "seen its row.",
        ),
        Case(
            _step_of("ABC", "AC"),
            _sent(True, "", ""),
            "B left. The others keep their slots, but row 1 of the batch is another request now, so the "
            "mapping has changed.",
        ),
        Case(
            _step_of("ABC", "ACD", 0, 2),
            _sent(True, "D", "AD"),
            "`changed` holds places in `running`: 0 is A and 2 is D. D's row goes once, though it is new and "
            "changed.",
        ),
        Case(
            _step_of("AB", "BA"),
            _sent(True, "", ""),
            "The same requests in another order: row b of the batch must find the slot of its own request.",
        ),
        Case(
            _step_of("", "AB", 0),
            _sent(True, "AB", "AB"),
            "After a failed step the device is trusted with nothing: all who run join anew.",
        ),
    ),
    solution=what_is_sent,
    draw=draw_what_is_sent,
    drawn_hint="The mapping goes if the requests are not those of the step before, in their order; a state "
    "goes if its request joins, and a row if its request joins or its list of blocks has changed.",
)
