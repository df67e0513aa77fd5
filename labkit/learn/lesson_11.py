"""Lesson 11: the records of all rungs side by side, where the rest of the gap is, and the exercises."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from random import Random

import pandas as pd

from labkit.bench import DecodeLimit, in_turn
from labkit.bench.limit import on_paper, step_limit
from labkit.bench.workload import Workload
from labkit.ladder import LADDER
from labkit.learn.exercise import Case, Exercise
from labkit.results import (
    Comparison,
    CostCard,
    CostCardRecord,
    PeersRecord,
    Run,
    RunsRecord,
    TracedStep,
    counts_table,
)
from labkit.results.kernels import ATTENTION, HEAD, LAYERS, part_counts, part_us
from labkit.results.peers import OURS
from labkit.results.runs import compared_runs

# --- the ladder -----------------------------------------------------------------------------------------


def changes_table() -> pd.DataFrame:
    """A row per rung: its title, the options that differ from the rung below, and the write-up that it
    follows."""
    rows, below = {}, None
    for number, rung in LADDER.items():
        now = asdict(rung.options)
        changed = [] if below is None else [f"{n}: {below[n]} → {now[n]}" for n in now if now[n] != below[n]]
        rows[number] = {"rung": rung.title, "what changed": "; ".join(changed), "after": rung.write_up}
        below = now
    return pd.DataFrame.from_dict(rows, orient="index")


# Counts of a cost card that a lesson removed: their names in a table.
COUNTS = {
    "manager_calls": "calls into the manager",
    "kv_block_infos": "records created",
    "index_tensors": "index tensors",
    "aten_ops": "operators",
    "kernels": "kernels",
    "h2d_copies": "copies to the GPU",
    "h2d_synchronizing": "of them, waited for",
    "synchronizations": "times the host waits",
}


def prefill_table(records: Mapping[str, RunsRecord], rungs: Sequence[str]) -> pd.DataFrame:
    """The share of a run that the prefill of its prompts takes: a row per rung, a column per record."""
    return pd.DataFrame(
        {
            name: {rung: f"{100 * record.prefill_share(rung):.1f} %" for rung in rungs}
            for name, record in records.items()
        }
    )


def removed_table(
    record: CostCardRecord, model: str, batch_size: int, lengths: Sequence[int]
) -> pd.DataFrame:
    """What one decode step does on each rung, by the newest recorded cost card of each: a row per rung, a
    column for each count that a lesson removed."""
    found = record.cards(lengths, model)
    return cards_table({rung: card for (rung, size), card in found.items() if size == batch_size})


def cards_table(cards: Mapping[str, CostCard]) -> pd.DataFrame:
    """A row per rung, in order: of its cost card, the counts that a lesson removed."""
    return counts_table(dict(sorted(cards.items())), COUNTS).T.rename_axis("rung")


def live_table(cards: Mapping[str, CostCard]) -> pd.DataFrame:
    """A row per rung: the host's counts of cost cards made here, without those of a GPU."""
    return cards_table({rung: replace(card, device=None) for rung, card in cards.items()})


# --- here and now ---------------------------------------------------------------------------------------


def run_every_rung(workload: Workload, rungs: Sequence[str], rounds: int = 2) -> dict[str, list[Run]]:
    """Runs of each rung, by its number, made in turn, with a fresh engine for each and a warm-up before
    them."""

    def run_once(rung: str) -> Run:
        return workload.run(workload.make_engine(LADDER[rung].options))

    for rung in rungs:
        run_once(rung)
    made = in_turn([lambda rung=rung: run_once(rung) for rung in rungs], rounds)
    return dict(zip(rungs, made, strict=True))


def compared(runs: Mapping[str, Sequence[Run]], before: str, after: str) -> Comparison:
    """Compare the runs of two rungs."""
    return compared_runs(runs[before], runs[after], (f"rung {before}", f"rung {after}"))


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """A parity table as a row per engine: for how many prompts it has the tokens of each reference."""
    rows: dict[str, dict[str, str]] = {}
    for column in table:
        engine, _, reference = column.rpartition(" = ")
        rows.setdefault(engine, {})[f"= {reference}"] = f"{table[column].sum()} of {len(table)}"
    return pd.DataFrame.from_dict(rows, orient="index")


# --- other engines --------------------------------------------------------------------------------------


def peer_notes(record: PeersRecord) -> dict[str, str]:
    """For each other engine, by name, how many times faster labkit's last rung is, with the interval."""
    notes = {}
    for engine in record.engines:
        if engine != record.ours:
            compared = record.comparison(engine, record.ours)
            low, high = compared.interval
            notes[engine] = f"{record.ours}: ×{compared.speedup:.2f} [{low:.2f}, {high:.2f}]"
    return notes


def same_tokens_table(records: Mapping[str, PeersRecord]) -> pd.DataFrame:
    """A row per engine, a column per record: how many requests had the first engine's tokens, in the worst of
    its runs."""
    return pd.DataFrame(
        {
            name: {e: f"{record.same_tokens(e)} of {record.num_requests}" for e in record.engines}
            for name, record in records.items()
        }
    ).fillna("")


def slower_rungs(ladder: RunsRecord, peers: PeersRecord) -> dict[str, str]:
    """For each other engine, by name, the rungs that decode more slowly than it does in a record of the same
    workload."""
    found = {}
    for engine in peers.engines:
        rate = peers.decode_rate(engine)
        if not engine.startswith(OURS) and rate is not None:
            slower = [rung for rung in ladder.rates if ladder.rate(rung) < rate]
            found[engine] = ", ".join(slower) or "none"
    return found


# --- what is left of the gap ----------------------------------------------------------------------------


def limit_of(step: TracedStep, bandwidth: float) -> DecodeLimit:
    """The least time that a recorded step of GPT-2 can take at this bandwidth, in bytes per second."""
    return step_limit(step.batch_size, step.context_len, bandwidth)


def step_floors(step: TracedStep, bandwidth: float) -> dict[str, float]:
    """Microseconds that the bytes of each part of a step take at this bandwidth, in bytes per second; their
    sum is the limit of the step."""
    gpt2, limit = on_paper(), limit_of(step, bandwidth)
    head = gpt2.lm_head.weight.numel() * gpt2.wte.weight.element_size()
    num_bytes = {ATTENTION: limit.kv_bytes, LAYERS: limit.weight_bytes - head, HEAD: head}
    return {part: 1e6 * n / bandwidth for part, n in num_bytes.items()}


def gap_table(step: TracedStep, bandwidth: float) -> pd.DataFrame:
    """A row per part of a recorded step: its microseconds, the least that it could take, and its share of the
    gap between the two."""
    parts, floors = part_us(step), step_floors(step, bandwidth)
    gap = sum(parts.values()) - sum(floors.values())
    rows = {
        part: {
            "us": round(us, 1),
            "at the limit": round(floors.get(part, 0.0), 1),
            "% of the copy bandwidth": f"{100 * floors[part] / us:.0f}" if part in floors else "",
            "% of the gap": f"{100 * (us - floors.get(part, 0.0)) / gap:.0f}",
        }
        for part, us in parts.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def kernels_table(step: TracedStep, bandwidth: float) -> pd.DataFrame:
    """A row per part with a floor: how many kernels it has in a step, and the microseconds of one, on average
    and at least."""
    parts, counts = part_us(step), part_counts(step)
    rows = {
        part: {
            "kernels a step": round(counts[part]),
            "us each": round(parts[part] / counts[part], 1),
            "at the limit": round(floor / counts[part], 1),
        }
        for part, floor in step_floors(step, bandwidth).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# --- exercises ------------------------------------------------------------------------------------------


def limit_bytes(
    weight_bytes: int,
    kv_bytes_per_token: int,
    num_requests: int,
    max_batch_size: int,
    prompt_len: int,
    new_tokens: int,
) -> int:
    """Bytes that decoding equal requests must move at least, with everything read as seldom as possible."""
    steps = new_tokens - 1  # the prefill makes the first token
    # Requests may take turns, so all batches but the last can be full; none is twice in one.
    batches = max(steps, -(-num_requests * steps // max_batch_size))
    weights = batches * weight_bytes  # once per step, for the whole batch
    # Step i, counted from 0, reads the prompt and i tokens, and writes one.
    kv_tokens = num_requests * sum(prompt_len + i + 1 for i in range(steps))
    return weights + kv_tokens * kv_bytes_per_token


def _workload(*numbers: int) -> dict[str, int]:
    names = ("weight_bytes", "kv_bytes_per_token", "num_requests")
    return dict(zip((*names, "max_batch_size", "prompt_len", "new_tokens"), numbers, strict=True))


def draw_workload(rng: Random) -> dict[str, int]:
    """Draw arguments of `limit_bytes`: fewer requests than a batch holds, as many, or more, of which the last
    batch may not be full."""
    max_batch_size = rng.randint(1, 64)
    num_requests = rng.choice(
        [rng.randint(1, max_batch_size), max_batch_size, max_batch_size + 1, rng.randint(1, 200)]
    )
    weight_bytes, kv_bytes = rng.choice([(1000, 0), (0, 2), (rng.randint(1, 999), rng.randint(1, 99))])
    prompt_len, new_tokens = rng.randint(1, 99), rng.choice([1, 2, rng.randint(3, 40)])
    return _workload(weight_bytes, kv_bytes, num_requests, max_batch_size, prompt_len, new_tokens)


LIMIT_BYTES = Exercise(
    name="limit_bytes",
    cases=(
        Case(
            _workload(100, 0, 1, 1, 5, 11),
            1000,
            "The prefill makes a request's first token, so 11 tokens take 10 decode steps.",
        ),
        Case(
            _workload(100, 0, 64, 64, 5, 11),
            1000,
            "A step reads the weights once for the whole batch, however many requests are in it.",
        ),
        Case(
            _workload(100, 0, 128, 64, 5, 11),
            2000,
            "128 requests do not fit into a batch of 64: it takes twice as many steps to serve them.",
        ),
        Case(
            _workload(0, 2, 1, 1, 5, 2),
            12,
            "The only step reads the keys and values of the 5 tokens of the prompt and writes those of one "
            "token.",
        ),
        Case(
            _workload(0, 2, 1, 1, 5, 4),
            42,
            "The cache grows: from step to step there is one more token to read (5, 6, 7), and each step "
            "writes one.",
        ),
        Case(
            _workload(0, 2, 8, 4, 5, 4),
            336,
            "Keys and values are each request's own: they are read for every request, whatever the batch.",
        ),
        Case(
            _workload(100, 0, 3, 64, 5, 11),
            1000,
            "A step reads all weights, also where its batch is not full; and a request can have one token of "
            "it, not more.",
        ),
        Case(
            _workload(100, 0, 65, 64, 5, 11),
            1100,
            "Requests may take turns: 65 with 10 steps each are 650 rows, which fill 10 batches of 64 and a "
            "part of another. There is no half step, and no need for 20.",
        ),
        Case(
            _workload(0, 2, 3, 2, 7, 3),
            102,
            "Rows that nobody has read no keys and values: 3 requests are 3, also in batches of 2; and the "
            "prompt has 7 tokens here.",
        ),
        Case(
            _workload(100, 2, 8, 4, 5, 1),
            0,
            "Where the prefill has made the only token, there is nothing to decode.",
        ),
    ),
    solution=limit_bytes,
    draw=draw_workload,
    drawn_hint="The weights once for each step, with batches as full as can be and one token for a request "
    "in each; and for every request and step the tokens in its cache, and the one that is written.",
)


def next_rung(parts: dict[str, float], floors: dict[str, float]) -> tuple[str | None, float]:
    """The part of a step with the most to gain (None if no part is above its floor), and how many times
    faster the step is without that gap."""
    gaps = {part: us - floors.get(part, 0.0) for part, us in parts.items()}
    part = max(gaps, key=gaps.get)
    if gaps[part] <= 0:
        return None, 1.0
    total = sum(parts.values())
    return part, total / (total - gaps[part])


def draw_parts(rng: Random) -> dict[str, dict[str, float]]:
    """Draw arguments of `next_rung`: parts above their floors, at them and below, and without any; one gap is
    the widest."""
    names = rng.sample(["attention", "matrices", "head", "sampling", "idle", "other"], rng.randint(2, 6))
    gaps = rng.sample([0, 1, 2.5, 4, 7, 12, 20, 33], len(names))
    if rng.random() < 0.2:
        gaps = [0] * len(names)
    parts, floors = {}, {}
    for name, gap in zip(names, gaps, strict=True):
        floor = rng.choice([0, rng.randint(1, 9), rng.randint(10, 300)]) if gap else rng.randint(1, 300)
        parts[name] = floor + gap if gap else max(1, floor - rng.choice([0, 0, 2, 50]))
        if floor:
            floors[name] = floor
    if not floors:  # something of a step must stay
        parts["weights"], floors["weights"] = 40, 40
    return {"parts": parts, "floors": floors}


NEXT_RUNG = Exercise(
    name="next_rung",
    cases=(
        Case(
            {"parts": {"attention": 60, "matrices": 100}, "floors": {"attention": 20, "matrices": 80}},
            ("attention", 160 / 120),
            "The longest part is not the one with the most to gain: what counts is how far it lies above its "
            "floor.",
        ),
        Case(
            {"parts": {"matrices": 50, "idle": 30}, "floors": {"matrices": 40}},
            ("idle", 80 / 50),
            "A part without a floor moves no byte that has to be moved: all of it could go.",
        ),
        Case(
            {"parts": {"attention": 2, "matrices": 54}, "floors": {"attention": 10, "matrices": 48}},
            ("matrices", 56 / 50),
            "A part can be faster than its floor where a cache held its bytes. That is no gap.",
        ),
        Case(
            {"parts": {"attention": 64, "sampling": 1}, "floors": {"attention": 64}},
            ("sampling", 65 / 64),
            "A part at its floor has nothing to give, so a small one is next, and the answer says how "
            "little that is.",
        ),
        Case(
            {"parts": {"attention": 64}, "floors": {"attention": 64}},
            (None, 1.0),
            "Nothing lies above its floor: there is no next rung, and the step is as fast as it is.",
        ),
        Case(
            {"parts": {"sampling": 6, "matrices": 100}, "floors": {"sampling": 1, "matrices": 80}},
            ("matrices", 106 / 86),
            "A small part can be many times its floor, and there is little to gain in it: what counts are "
            "microseconds.",
        ),
        Case(
            {"parts": {"idle": 5, "matrices": 100}, "floors": {"matrices": 80}},
            ("matrices", 105 / 85),
            "All of a part without a floor could go, but that need not be the most.",
        ),
        Case(
            {"parts": {"attention": 40, "matrices": 90, "idle": 10}, "floors": {"attention": 30}},
            ("matrices", 140 / 50),
            "The factor is that of the whole step, if this one part comes down to its floor and all others "
            "stay as they are.",
        ),
    ),
    solution=next_rung,
    draw=draw_parts,
    drawn_hint="The part that lies furthest above its floor, in microseconds (a part without a floor, above "
    "0); and the whole step over what it is without that distance.",
)
