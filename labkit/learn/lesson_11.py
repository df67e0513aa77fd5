"""Lesson 11: the records of all rungs side by side, where the rest of the gap is, and the exercises."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from random import Random
from statistics import median

import pandas as pd
import torch

from labkit.bench import (
    Comparison,
    CostCard,
    DecodeLimit,
    decode_limit,
    host_times,
    in_turn,
    ladder_comparison,
    ladder_limit,
    ladder_rates,
)
from labkit.bench.comparison import total_paths
from labkit.bench.limit import decode_weights
from labkit.bench.workload import Run, Workload
from labkit.ladder import LADDER
from labkit.learn.exercise import Case, Exercise
from labkit.model import GPT2
from labkit.model.checkpoint import RANDOM_CONFIGS

# --- the ladder -----------------------------------------------------------------------------------------


def changes_table() -> pd.DataFrame:
    """A row a rung: the options that differ from the rung below, and what went."""
    rows, below = {}, None
    for number, rung in LADDER.items():
        now = asdict(rung.options)
        changed = [] if below is None else [f"{n}: {below[n]} → {now[n]}" for n in now if now[n] != below[n]]
        rows[number] = {"rung": rung.title, "what changed": "; ".join(changed), "after": rung.write_up}
        below = now
    return pd.DataFrame.from_dict(rows, orient="index")


# Of a cost card: what a lesson took away, and its name in a table.
HOST_COLUMNS = {
    "manager_calls": "calls into the manager",
    "kv_block_infos": "records created",
    "index_tensors": "index tensors",
    "aten_ops": "operators",
}
DEVICE_COLUMNS = {
    "kernels": "kernels",
    "h2d_copies": "copies to the GPU",
    "h2d_synchronizing": "of them, waited for",
    "synchronizations": "times the host waits",
}


def steps_table(record: dict) -> pd.DataFrame:
    """A row a rung of a `ladder` record: its rate, and what it gains over the rung below in the record."""
    rates, limit = ladder_rates(record), ladder_limit(record)
    numbers, rows = list(rates), {}
    for below, number in zip([None, *numbers], numbers, strict=False):
        rows[number] = {
            "decode tokens/s": f"{median(rates[number]):,.0f}",
            "% of limit": f"{100 * median(rates[number]) / limit:.1f}",
            "over the rung below": "",
            "interval": "",
            "verdict": "",
        }
        if below is not None:
            step = ladder_comparison(record, below, number)
            rows[number] |= {
                "over the rung below": f"×{step.speedup:.2f}",
                "interval": str(step.interval),
                "verdict": step.verdict,
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("rung")


def reached(record: dict, rung: str) -> float:
    """The share of the limit, in per cent, that a rung of a `ladder` record reaches."""
    return 100 * median(ladder_rates(record)[rung]) / ladder_limit(record)


def prefill_share(record: dict, rung: str) -> float:
    """Per cent of a run that its prefill takes."""
    runs = [sample for sample in record["samples"] if sample["rung"] == rung]
    return 100 * median(run["prefill_seconds"] / run["seconds"] for run in runs)


def rates_table(records: Mapping[str, dict]) -> pd.DataFrame:
    """Decode tokens a second, with their share of the limit: a row a rung, a column a `ladder` record."""
    cells = {
        name: {n: f"{median(r):,.0f} ({reached(record, n):.1f} %)" for n, r in ladder_rates(record).items()}
        for name, record in records.items()
    }
    return pd.DataFrame(cells).fillna("").sort_index()


def prefill_table(records: Mapping[str, dict], rungs: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: {n: f"{prefill_share(record, n):.1f} %" for n in rungs} for name, record in records.items()}
    )


def removed_table(record: dict, model: str, batch_size: int, lengths: Sequence[int]) -> pd.DataFrame:
    """What one decode step did on each rung, from a `cost_card` record: the newest card of each."""
    rows = {}
    for sample in record["samples"]:
        key = sample["key"]
        if (key["model"], sample["batch_size"]) != (model, batch_size):
            continue
        if set(key["prompt_lens"]) == set(lengths):
            rows[sample["rung"]] = card_row(sample["card"]["host"], sample["card"]["device"])
    return _cards(rows)


def live_table(cards: Mapping[str, CostCard]) -> pd.DataFrame:
    """The host's part of cards counted here."""
    return _cards({rung: card_row(vars(card.host), None) for rung, card in cards.items()})


def card_row(host: Mapping[str, int], device: Mapping[str, int] | None) -> dict[str, int]:
    row = {name: host[field] for field, name in HOST_COLUMNS.items()}
    if device is not None:
        row |= {name: device[field] for field, name in DEVICE_COLUMNS.items()}
    return row


def _cards(rows: Mapping[str, Mapping[str, int]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(dict(sorted(rows.items())), orient="index").rename_axis("rung")


def host_table(record: dict, batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Microseconds of the host a step, a row a rung, from a record of `host-time`."""
    rows = {
        rung: {f"B = {t.batch_size}": round(t.step_us) for t in times if t.batch_size in batch_sizes}
        for rung, times in host_times(record).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("rung")


# --- here and now ---------------------------------------------------------------------------------------


def run_every_rung(workload: Workload, rungs: Sequence[str], rounds: int = 2) -> dict[str, list[Run]]:
    """Runs of each rung, in turn, with a fresh engine each and a warm-up before them."""

    def run_once(rung: str) -> Run:
        return workload.run(workload.make_engine(LADDER[rung].options))

    for rung in rungs:
        run_once(rung)
    made = in_turn([lambda rung=rung: run_once(rung) for rung in rungs], rounds)
    return dict(zip(rungs, made, strict=True))


def compared(runs: Mapping[str, Sequence[Run]], before: str, after: str) -> Comparison:
    sides = [tuple(run.decode_seconds for run in runs[rung]) for rung in (before, after)]
    paths = [total_paths(runs[rung]) for rung in (before, after)]
    return Comparison(f"rung {before}", f"rung {after}", *sides, *paths)


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """A parity table with a row an engine: of how many prompts it has a reference's tokens."""
    rows: dict[str, dict[str, str]] = {}
    for column in table:
        engine, _, reference = column.rpartition(" = ")
        rows.setdefault(engine, {})[f"= {reference}"] = f"{table[column].sum()} of {len(table)}"
    return pd.DataFrame.from_dict(rows, orient="index")


# --- other engines --------------------------------------------------------------------------------------


def peer_rates(record: dict) -> dict[str, list[float]]:
    """Tokens a second of each whole run, by engine, from a record of `peers`."""
    rates: dict[str, list[float]] = {}
    for sample in record["samples"]:
        rates.setdefault(sample["engine"], []).append(sample["tokens_per_second"])
    return rates


def peer_limit(record: dict) -> float:
    """The most tokens a second that the bytes allow; the prompts' own work is not in it."""
    return median(sample["tokens"] / sample["limit_seconds"] for sample in record["samples"])


def peer_comparison(record: dict, engine: str, reference: str) -> Comparison:
    """Whole runs of two engines, made in turn: above 1 if `reference` is faster."""

    def side(name: str) -> tuple[float, ...]:
        return tuple(sample["seconds"] for sample in record["samples"] if sample["engine"] == name)

    return Comparison(engine, reference, side(engine), side(reference), {}, {})


def best_of_ours(record: dict) -> str:
    """The last rung of the record."""
    return max(engine for engine in peer_rates(record) if engine.startswith("labkit"))


def best_of_theirs(record: dict) -> str:
    """The fastest engine that is not labkit."""
    rates = peer_rates(record)
    return max((e for e in rates if not e.startswith("labkit")), key=lambda e: median(rates[e]))


def peer_notes(record: dict) -> dict[str, str]:
    """For each other engine, how many times faster labkit's last rung is."""
    ours = best_of_ours(record)
    notes = {}
    for engine in peer_rates(record):
        if engine != ours:
            compared = peer_comparison(record, engine, ours)
            low, high = compared.interval
            notes[engine] = f"{ours}: ×{compared.speedup:.2f} [{low:.2f}, {high:.2f}]"
    return notes


def peers_table(record: dict) -> pd.DataFrame:
    """A row an engine: whole runs, decoding alone, and the wait for the first token."""
    rows = {}
    for engine in peer_rates(record):
        runs = [sample for sample in record["samples"] if sample["engine"] == engine]
        decode = [r for run in runs if (r := run["decode_tokens_per_second"]) is not None]
        first = [1e3 * s for run in runs if (s := run["first_token_seconds"]) is not None]
        rows[engine] = {
            "tokens/s": f"{median(run['tokens_per_second'] for run in runs):,.0f}",
            "decode tokens/s": f"{median(decode):,.0f}" if decode else "",
            "first token (ms)": f"{median(first):.1f}" if first else "",
            "% of limit": f"{100 * median(run['limit_seconds'] / run['seconds'] for run in runs):.1f}",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("engine")


def same_tokens_table(records: Mapping[str, dict]) -> pd.DataFrame:
    """For each engine, how many requests had the first engine's tokens, in the worst of its runs."""

    def worst(record: dict, engine: str) -> str:
        same = min(s["equal_requests"] for s in record["samples"] if s["engine"] == engine)
        return f"{same} of {record['settings']['num_requests']}"

    return pd.DataFrame(
        {name: {e: worst(record, e) for e in peer_rates(record)} for name, record in records.items()}
    ).fillna("")


def slower_rungs(ladder: dict, peers: dict) -> dict[str, str]:
    """For each other engine, the rungs of a `ladder` record of the same workload that decode more slowly."""
    found = {}
    for engine in peer_rates(peers):
        rates = [s["decode_tokens_per_second"] for s in peers["samples"] if s["engine"] == engine]
        if not engine.startswith("labkit") and None not in rates:
            slower = [n for n, runs in ladder_rates(ladder).items() if median(runs) < median(rates)]
            found[engine] = ", ".join(slower) or "none"
    return found


# --- what is left of the gap ----------------------------------------------------------------------------

# Of a step on the last rung, by what its kernels' names contain; the first that fits.
ATTENTION, LAYERS, HEAD = "attention", "matrices of the layers", "matrix of the head"
REST, IDLE = "everything else", "nothing: the GPU waits"
KERNELS = (
    (ATTENTION, ("paged_attn",)),
    (LAYERS, ("_norm_linear_kernel", "_linear_residual_kernel")),
    (HEAD, ("gemm", "nvjet", "gemv", "cutlass", "splitK")),
)


def part_of(kernel: str) -> str:
    found = (part for part, patterns in KERNELS if any(pattern in kernel for pattern in patterns))
    return next(found, REST)


def step_parts(sample: dict) -> dict[str, float]:
    """Microseconds of a step by what they are spent on, from a `device-time` sample of rung 09 or above."""
    parts = dict.fromkeys((ATTENTION, LAYERS, HEAD, REST), 0.0)
    for kernel in sample["kernels"]:
        parts[part_of(kernel["name"])] += kernel["us"]
    return parts | {IDLE: sample["step_us"] - sample["gpu_busy_us"]}


def on_paper(name: str = "gpt2", dtype: torch.dtype = torch.float16) -> GPT2:
    """A model that has sizes and no numbers: enough to compute a limit, and it takes no memory."""
    with torch.device("meta"):
        return GPT2(RANDOM_CONFIGS[name]).to(dtype)


def limit_of(sample: dict, bandwidth: float) -> DecodeLimit:
    return decode_limit(on_paper(), [sample["context_len"]] * sample["batch_size"], bandwidth)


def step_floors(sample: dict, bandwidth: float) -> dict[str, float]:
    """Microseconds that the bytes of each part take at this bandwidth; their sum is the limit of the step."""
    gpt2, limit = on_paper(), limit_of(sample, bandwidth)
    itemsize = gpt2.wte.weight.element_size()
    head = gpt2.lm_head.weight.numel() * itemsize
    layers = decode_weights(gpt2) * itemsize - head
    num_bytes = {ATTENTION: limit.kv_bytes, LAYERS: layers, HEAD: head}
    return {part: 1e6 * n / bandwidth for part, n in num_bytes.items()}


def gap_table(sample: dict, bandwidth: float) -> pd.DataFrame:
    """A row a part of the step: what it takes, the least, and its share of what lies between."""
    parts, floors = step_parts(sample), step_floors(sample, bandwidth)
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


def kernels_table(sample: dict, bandwidth: float) -> pd.DataFrame:
    """A row a part with a floor: its kernels, and what one of them takes, on average and at least."""
    floors, counts = step_floors(sample, bandwidth), dict.fromkeys((ATTENTION, LAYERS, HEAD, REST), 0.0)
    for kernel in sample["kernels"]:
        counts[part_of(kernel["name"])] += kernel["count"]
    parts = step_parts(sample)
    rows = {
        part: {
            "kernels a step": round(counts[part]),
            "us each": round(parts[part] / counts[part], 1),
            "at the limit": round(floor / counts[part], 1),
        }
        for part, floor in floors.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def rest_table(sample: dict, most: int = 8) -> pd.DataFrame:
    """The kernels that no byte of the limit explains, those that take longest first."""
    rest = [k for k in sample["kernels"] if part_of(k["name"]) == REST]
    rows = [(short_name(k["name"]), round(k["count"], 1), round(k["us"], 1)) for k in rest[:most]]
    return pd.DataFrame(rows, columns=["kernel", "a step", "us"]).set_index("kernel")


def idle_table(record: dict, batch_size: int) -> pd.DataFrame:
    """How long the GPU works and waits in a step, a row a rung."""
    rows = {
        sample["rung"]: {
            "step (us)": round(sample["step_us"]),
            "GPU at work (us)": round(sample["gpu_busy_us"]),
            "GPU idle": f"{100 * sample['idle_share']:.0f} %",
            "kernels and copies": round(sum(kernel["count"] for kernel in sample["kernels"])),
        }
        for sample in record["samples"]
        if sample["batch_size"] == batch_size
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("rung")


def short_name(kernel: str) -> str:
    """Without a C++ kernel's return type, namespaces and arguments."""
    name = re.sub(r"^void |\(anonymous namespace\)::", "", kernel)
    return re.split(r"[<(]", name)[0].strip().rpartition("::")[2]


def kernel_sample(record: dict, rung: str, batch_size: int) -> dict:
    """Raises ValueError if the record has no such step."""
    for sample in record["samples"]:
        if (sample["rung"], sample["batch_size"]) == (rung, batch_size):
            return sample
    raise ValueError(f"the record has no step of rung {rung} at B = {batch_size}")


# --- exercises ------------------------------------------------------------------------------------------


def limit_bytes(
    weight_bytes: int,
    kv_bytes_per_token: int,
    num_requests: int,
    max_batch_size: int,
    prompt_len: int,
    new_tokens: int,
) -> int:
    """Bytes that decoding equal requests must move, with everything read as seldom as possible."""
    steps = new_tokens - 1  # the prefill makes the first token
    # Requests may take turns, so all batches but the last can be full; none is twice in one.
    batches = max(steps, -(-num_requests * steps // max_batch_size))
    weights = batches * weight_bytes  # once a step, whoever is in the batch
    # Step i, counted from 0, reads the prompt and i tokens, and writes one.
    kv_tokens = num_requests * sum(prompt_len + i + 1 for i in range(steps))
    return weights + kv_tokens * kv_bytes_per_token


def _workload(*numbers: int) -> dict[str, int]:
    names = ("weight_bytes", "kv_bytes_per_token", "num_requests")
    return dict(zip((*names, "max_batch_size", "prompt_len", "new_tokens"), numbers, strict=True))


def draw_workload(rng: Random) -> dict[str, int]:
    """Fewer requests than a batch holds, as many, and more, of which the last batch may not be full."""
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
    """The part of a step with the most to gain, and how many times faster the step is without that gap."""
    gaps = {part: us - floors.get(part, 0.0) for part, us in parts.items()}
    part = max(gaps, key=gaps.get)
    if gaps[part] <= 0:
        return None, 1.0
    total = sum(parts.values())
    return part, total / (total - gaps[part])


def draw_parts(rng: Random) -> dict[str, dict[str, float]]:
    """Parts above their floors, at them and below, and without any; one gap is the widest."""
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
