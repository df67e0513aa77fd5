"""Lesson 04: the exercises, and what its cells compute."""

import random
import shlex
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from labkit import kernels
from labkit.bench.__main__ import make_parser
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.kernels.triton_runtime import TritonUnavailableError, check_launchable
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.kvcache.kv_write import KVWrite
from labkit.learn.exercise import Case, Exercise
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.results import CostCardRecord, counts_table, speedup_interval
from labkit.watch import OperatorCounter, Positions, record_positions, steady_prompts

# --- positions that differ for ever --------------------------------------------------------------------


def watch_positions(
    model: LanguageModel,
    options: EngineOptions,
    device: torch.device,
    lengths: Sequence[int],
    late_lengths: Sequence[int] = (),
    num_steps: int = 24,
    block_size: int = 8,
) -> Positions:
    """Record where requests with prompts of these lengths write; requests with prompts of `late_lengths` join
    after five steps."""
    engine = InferenceEngine(
        model, options, device=device, cache=CacheConfig(block_size=block_size, prefix_cache=False)
    )
    params = SamplingParams(max_new_tokens=num_steps + 8, stop_on_eos=False)

    def arrive(lengths: Sequence[int]) -> None:
        for prompt in steady_prompts(len(lengths), lengths):
            engine.add_request(prompt, params)

    arrive(lengths)
    if not late_lengths:
        return record_positions(engine, num_steps)
    alone = record_positions(engine, 5)
    arrive(late_lengths)
    return alone.then(record_positions(engine, num_steps - 5))


# --- which write for which batch -----------------------------------------------------------------------

BATCH = 4
BATCHES = {  # (whole batch?, equal positions?): the requests that are written, and their slots
    ("yes", "yes"): (range(BATCH), [5] * BATCH),
    ("yes", "no"): (range(BATCH), [5, 0, 7, 2]),
    ("no", "yes"): ([0, 1, 3], [5, 5, 5]),
    ("no", "no"): ([0, 1, 3], [5, 0, 2]),
}
WRITES = {"rung 02": IndexedWrite, "rung 03": FullBatchWrite, "rung 04": IdentityPosWrite}


def dispatch_table(device: torch.device) -> pd.DataFrame:
    """A table of four kinds of batches: for the write of each rung, the path that it took and how many index
    tensors it made."""
    rows = []
    for (whole, equal), (batch_idx, pos) in BATCHES.items():
        row = {"whole batch?": whole, "equal positions?": equal}
        for name, kind in WRITES.items():
            path, num_tensors = written_by(kind(device), batch_idx, pos, device)
            row[name] = f"{path}, {num_tensors} index tensor{'s' * (num_tensors > 1)}"
        rows.append(row)
    return pd.DataFrame(rows).set_index(["whole batch?", "equal positions?"])


def written_by(
    write: KVWrite, batch_idx: Sequence[int], pos: Sequence[int], device: torch.device
) -> tuple[str, int]:
    """Write a batch of tokens, and return the path taken and how many index tensors were made."""
    k_cache, v_cache = torch.zeros(2, BATCH, 2, 8, 64, device=device)  # [N, H, block_size, D] each
    key_new, value_new = torch.ones(2, BATCH, 2, 64, device=device)
    with OperatorCounter() as counter:
        path = write.write(k_cache, v_cache, key_new, value_new, batch_idx, list(batch_idx), pos)
    return path, counter.index_tensors


# --- the kernels against indexed assignment ------------------------------------------------------------

REQUESTS, HEADS, BLOCK_SIZE = 5, 3, 8
WHOLE = list(range(REQUESTS))
LAST = BLOCK_SIZE - 1
SCENES = {  # by name: the requests that are written, and their slots
    "all in the first slot": (WHOLE, [0] * REQUESTS),
    "all in the last slot": (WHOLE, [LAST] * REQUESTS),
    "first, last and between": (WHOLE, [0, LAST, 3, 0, LAST]),
    "three of five requests": ([0, 2, 3], [LAST, 0, 4]),
}


def three_forms(device: torch.device) -> tuple[str, dict[str, Callable]]:
    """The three forms of the write that can run on this device, by name: Triton's kernels or their plain
    twins; and before them, in words, which of the two."""
    try:
        check_launchable(device)
    except TritonUnavailableError as error:
        plain = (
            kernels.kv_append_plain,
            kernels.kv_append_full_batch_plain,
            kernels.kv_append_identity_pos_plain,
        )
        return f"the kernels' plain twins, because {error}", dict(zip(FORMS, plain, strict=True))
    compiled = (
        kernels.kv_append_triton,
        kernels.kv_append_triton_full_batch,
        kernels.kv_append_triton_identity_pos,
    )
    how = "compiled" if kernels.triton_status().mode == "native" else "in the interpreter"
    return f"the Triton kernels, {how}", dict(zip(FORMS, compiled, strict=True))


FORMS = ("generic", "full_batch", "identity_pos")


def kernel_agreement(device: torch.device) -> pd.DataFrame:
    """Whether each form of the write leaves exactly the bytes in the pool that indexed assignment leaves: a
    row per scene, a column per form; "-" where the form does not serve the scene.

    Compared in 16 and 32 bits, and for heads that one program moves at once and heads that take two.
    """
    _, forms = three_forms(device)
    setups = [(dtype, D) for dtype in (torch.float16, torch.float32) for D in (64, 80)]
    table = {
        scene: {
            name: str(all(agrees(write, name, *where, *setup, device) for setup in setups))
            if fits(name, *where)
            else "-"
            for name, write in forms.items()
        }
        for scene, where in SCENES.items()
    }
    return pd.DataFrame(table).T


def fits(form: str, batch_idx: Sequence[int], pos: Sequence[int]) -> bool:
    """Whether a form of the write may be given a batch of these requests and slots."""
    whole, equal = len(batch_idx) == REQUESTS, len(set(pos)) == 1
    return {"generic": True, "full_batch": whole and equal, "identity_pos": whole}[form]


def agrees(
    write: Callable,
    form: str,
    batch_idx: Sequence[int],
    pos: Sequence[int],
    dtype: torch.dtype,
    D: int,
    device: torch.device,
) -> bool:
    """Whether a form of the write leaves the same bytes in a pool as indexed assignment; what lies in other
    slots must stay."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    pool = numbers(2, 2 * REQUESTS, HEADS, BLOCK_SIZE, D)  # other slots must keep what lies in them
    key_new, value_new = numbers(2, REQUESTS, HEADS, D)
    blocks = torch.randperm(2 * REQUESTS, generator=generator)[: len(batch_idx)]  # each its own
    idx_t, blk_t, pos_t = (torch.as_tensor(i, dtype=torch.int32).to(device) for i in (batch_idx, blocks, pos))
    indices = {
        "generic": (idx_t, blk_t, pos_t),
        "full_batch": (blk_t, pos[0]),
        "identity_pos": (blk_t, pos_t),
    }
    expected = pool.clone()
    kernels.kv_append_plain(*expected, key_new, value_new, idx_t, blk_t, pos_t)
    write(*pool, key_new, value_new, *indices[form])
    return torch.equal(pool, expected)


# --- what was counted and published --------------------------------------------------------------------


COUNTS = {  # counts of a cost card: their words in a table
    "aten_ops": "PyTorch operators",
    "index_tensors": "index tensors",
    "h2d_synchronizing": "synchronizing copies",
    "synchronizations": "waits for the GPU",
    "kernels": "kernels",
}


def recorded_counts(
    record: CostCardRecord, rungs: Sequence[str], model: str, lengths: Sequence[int], batch_size: int
) -> pd.DataFrame:
    """A table of recorded decode steps, a column per rung: the write taken, and COUNTS of what its index
    tensors cost."""
    found = record.cards(lengths, model, rungs)
    cards = {f"rung {rung}": card for (rung, size), card in found.items() if size == batch_size}
    writes = {n: next(path for path in card.append_paths if path != "in_place") for n, card in cards.items()}
    return pd.concat([pd.DataFrame(writes, index=["write"]), counts_table(cards, COUNTS)])


def parsed(command: str) -> dict[str, object]:
    """The settings of a benchmark's command line, as this package's own parser reads it; without the rung,
    which write-ups do not have. Exits on a flag that the parser does not know."""
    arguments = vars(make_parser().parse_args(shlex.split(command)))
    left_out = ("run", "rung")
    # A 0 is a setting, too, and equals False.
    return {n: v for n, v in arguments.items() if n not in left_out and v is not None and v is not False}


def relabelled(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """An exact permutation test (Fisher, 1935): in how many of all ways to call some of these runs `after`
    the means lie at least as far apart, in either direction, as with the true labels; and how many ways there
    are."""
    runs = [*before, *after]

    def apart(picked: Sequence[int]) -> float:
        others = [run for i, run in enumerate(runs) if i not in picked]
        return abs(np.mean([runs[i] for i in picked]) - np.mean(others))

    ways = list(combinations(range(len(runs)), len(after)))
    true_labels = apart(range(len(before), len(runs)))
    return sum(bool(apart(way) >= true_labels * (1 - 1e-12)) for way in ways), len(ways)


def spread(*sides: Sequence[float]) -> float:
    """How far runs of one kind scatter: the standard deviation over the mean, pooled over the sides."""
    variances = [np.var(runs, ddof=1) / np.mean(runs) ** 2 for runs in sides]
    return float(np.sqrt(np.mean(variances)))


def detected(runs: int, spread: float, gain: float, experiments: int = 50, seed: int = 0) -> float:
    """The share of simulated comparisons that come out "faster" or "slower".

    Each has `runs` runs per side that scatter by `spread`, and a true speed-up of 1 + gain.
    """
    generator = np.random.default_rng(seed)
    found = 0
    for _ in range(experiments):
        before, after = generator.normal(1, spread, (2, runs)) / [[1], [1 + gain]]
        low, high = speedup_interval(before.tolist(), after.tolist())
        found += low > 1 or high < 1
    return found / experiments


# --- exercises -----------------------------------------------------------------------------------------


def dispatch(num_written: int, batch_size: int, positions: list[int]) -> str:
    """The write of `num_written` requests of a batch, at these slots of their last blocks: "generic",
    "full_batch" or "identity_pos"."""
    if num_written < batch_size:
        return "generic"
    return "full_batch" if len(set(positions)) == 1 else "identity_pos"


def is_identity(batch_idx: list[int], batch_size: int) -> bool:
    """Whether row b of the new keys and values is request b's, for every b of the batch."""
    return batch_idx == list(range(batch_size))


def draw_dispatch(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `dispatch`: a batch, whole or not, with equal slots, or with some that differ: by
    one, or by a block's length."""
    batch_size = rng.randint(1, 6)
    num_written = rng.choice((batch_size, batch_size, rng.randint(1, batch_size)))
    slot, apart = rng.choice((0, 20, 100)), rng.choice((1, 8, 64))
    steps = rng.choice(((0,), (0, 1), (0, 1, 2)))
    positions = [slot + apart * rng.choice(steps) for _ in range(num_written)]
    if rng.random() < 0.3:  # all but one
        positions = [slot] * num_written
        positions[rng.randrange(num_written)] += rng.choice((-1, 1)) * apart * (slot > 0)
    return {"num_written": num_written, "batch_size": batch_size, "positions": positions}


DISPATCH = Exercise(
    name="dispatch",
    cases=(
        Case(
            {"num_written": 4, "batch_size": 4, "positions": [9, 9, 9, 9]},
            "full_batch",
            "The whole batch at one slot: neither rows nor slots need a tensor.",
        ),
        Case(
            {"num_written": 4, "batch_size": 4, "positions": [9, 12, 9, 12]},
            "identity_pos",
            "The whole batch at differing slots: request b is still row b, so only the slots need a tensor.",
        ),
        Case(
            {"num_written": 3, "batch_size": 4, "positions": [9, 12, 5]},
            "generic",
            "One of the four is not written, so rows and requests no longer agree: batch_idx must say which.",
        ),
        Case(
            {"num_written": 3, "batch_size": 4, "positions": [9, 9, 9]},
            "generic",
            "Equal slots do not help a part of a batch: full-batch, too, takes row b for request b.",
        ),
        Case(
            {"num_written": 4, "batch_size": 4, "positions": [9, 9, 9, 10]},
            "identity_pos",
            "A single request at another slot is enough: compare all positions, not the first two.",
        ),
        Case(
            {"num_written": 3, "batch_size": 3, "positions": [9, 10, 9]},
            "identity_pos",
            "The first and the last agree, and the one between them does not: compare all positions.",
        ),
        Case(
            {"num_written": 4, "batch_size": 4, "positions": [1, 17, 33, 49]},
            "identity_pos",
            "Slots 16 apart are different slots, however long a block is: compare them as they are.",
        ),
        Case(
            {"num_written": 1, "batch_size": 1, "positions": [63]},
            "full_batch",
            "A batch of one is whole, and its positions are all equal.",
        ),
        Case(
            {"num_written": 2, "batch_size": 2, "positions": [0, 0]},
            "full_batch",
            "Slot 0 is a slot like any other.",
        ),
    ),
    solution=dispatch,
    draw=draw_dispatch,
    drawn_hint="Two questions, in this order: is the whole batch written? Are all positions equal?",
)


def draw_is_identity(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `is_identity`: the identity of a batch, or a list that is nearly the identity."""
    batch_size = rng.randint(1, 6)
    rows = list(range(batch_size))
    b = rng.randrange(batch_size)
    nearly = {
        "itself": rows,
        "two swapped": [*rows[:b], *reversed(rows[b : b + 2]), *rows[b + 2 :]],
        "shuffled": rng.sample(rows, batch_size),
        "another in its place": [*rows[:b], rng.choice((-b, b - batch_size, b + 1)), *rows[b + 1 :]],
        "all one further": [row + 1 for row in rows],
        "one too many": [*rows, batch_size],
        "one before it": [batch_size, *rows],
        "a part": rows[: b + 1],
        "without one": [row for row in range(batch_size + 1) if row != b],
    }
    return {"batch_idx": rng.choice([rows, *nearly.values()]), "batch_size": batch_size}


IS_IDENTITY = Exercise(
    name="is_identity",
    cases=(
        Case(
            {"batch_idx": [0, 1, 2, 3], "batch_size": 4},
            True,
            "Row b is request b, for b = 0, 1, 2 and 3: one True for the whole batch.",
        ),
        Case(
            {"batch_idx": [0, 1, 3], "batch_size": 4},
            False,
            "Request 2 is missing, and from there on rows and requests are off by one.",
        ),
        Case(
            {"batch_idx": [0, 1], "batch_size": 4},
            False,
            "The first two rows agree, but a kernel without batch_idx serves all four requests.",
        ),
        Case(
            {"batch_idx": [1, 0, 2, 3], "batch_size": 4},
            False,
            "All four are there, but requests 0 and 1 would each get the other's keys and values. (The "
            "package may look at the length alone: its batch_idx is always rising.)",
        ),
        Case(
            {"batch_idx": [0, 1, 1, 3], "batch_size": 4},
            False,
            "Request 1 is named twice and request 2 never: the number of entries is not enough.",
        ),
        Case(
            {"batch_idx": [1, 2, 3, 4], "batch_size": 4},
            False,
            "Rising by one, and four of them, but row 0 is request 1's: the first must be 0.",
        ),
        Case(
            {"batch_idx": [0, 1, 2, 3, 4], "batch_size": 4},
            False,
            "The batch has four requests, and there is a fifth entry: it is not this batch's identity.",
        ),
        Case(
            {"batch_idx": [0], "batch_size": 1},
            True,
            "A batch of one is written whole.",
        ),
    ),
    solution=is_identity,
    draw=draw_is_identity,
    drawn_hint="There must be an entry for each request of the batch, and entry b must be b.",
)
