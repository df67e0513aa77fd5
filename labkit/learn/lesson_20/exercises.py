"""Lesson 20: the exercises on sick engines, on bytes and on the part to attack next."""

from collections.abc import Callable
from inspect import signature
from random import Random
from typing import Any

from labkit.checks import shown
from labkit.learn.exercise import BrokenContract, Exercise, answer_of

# --- which contract each of the three sick engines breaks ----------------------------------------------

# What would be seen if a contract were broken; a wrong answer is told this.
WOULD_SHOW = {
    "own slots": "tokens would be stored in wrong places and texts would be wrong in every visit, the plain "
    "one too",
    "fresh rows": "texts would be wrong where the last block of a list is replaced by a copy, and nowhere "
    "else",
    "records in place": "the card would count new KVBlockInfo objects in a steady step",
    "send changes": "the card would count index tensors in a steady step of a rung that sends nothing then",
    "fixed addresses": "a replay would read an old tensor, so texts would be wrong in every visit to a rung "
    "that replays",
    "undo": "all would be well until a step fails after it has taken a block",
    "discard": "a text would have tokens after its end, which check_integrity or the count of tokens shows",
    "few kernels": "on a rung from 09 up, the card would count more operators, but no more index tensors",
}
BROKEN = {"A": "fresh rows", "B": "undo", "C": "send changes"}


def diagnose(patient: str) -> str:
    """The name of the contract that a patient breaks."""
    return BROKEN[patient]


def fits(attempt: Callable, patient: str) -> dict[str, Any]:
    """Whether the attempt's answer fits what the patient shows. Raises BrokenContract, with what the named
    contract would look like, if not."""
    answer = answer_of(attempt, patient=patient)
    if not isinstance(answer, str) or answer not in WOULD_SHOW:
        raise BrokenContract(f"{shown(answer)} is none of the contracts: {', '.join(WOULD_SHOW)}.")
    if answer != BROKEN[patient]:
        raise BrokenContract(
            f"{answer!r} does not fit. If that were broken, {WOULD_SHOW[answer]}. {patient} looks different."
        )
    return {"fits": True}


DIAGNOSIS = Exercise(
    solution=diagnose,
    draw=lambda rng: {"patient": rng.choice(sorted(BROKEN))},
    contract="",
    play=fits,
)


# --- what a workload could reach, and what to attack next ------------------------------------------------


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


def draw_workload(rng: Random) -> dict[str, int]:
    """Draw arguments of `limit_bytes`: fewer requests than a batch holds, as many, or more, of which the last
    batch may not be full."""
    max_batch_size = rng.randint(1, 64)
    num_requests = rng.choice(
        [rng.randint(1, max_batch_size), max_batch_size, max_batch_size + 1, rng.randint(1, 200)]
    )
    weight_bytes, kv_bytes = rng.choice([(1000, 0), (0, 2), (rng.randint(1, 999), rng.randint(1, 99))])
    prompt_len, new_tokens = rng.randint(1, 99), rng.choice([1, 2, rng.randint(3, 40)])
    numbers = (weight_bytes, kv_bytes, num_requests, max_batch_size, prompt_len, new_tokens)
    return dict(zip(signature(limit_bytes).parameters, numbers, strict=True))


LIMIT_BYTES = Exercise(
    solution=limit_bytes,
    draw=draw_workload,
    contract="Count the weights once per step, with batches as full as they can be and at most one token "
    "of a request in each (the prefill makes the first token). For every request and step, add "
    "the tokens in its cache and the one that is written.",
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
    the widest, if there is one."""
    names = rng.sample(["attention", "matrices", "head", "sampling", "idle", "other"], rng.randint(2, 6))
    gaps = rng.sample([-50, -2, 0, 1, 2.5, 4, 7, 12, 20, 33], len(names))
    most = rng.choice([0, 33, 33, 33, 33])
    parts, floors = {}, {}
    for name, gap in zip(names, gaps, strict=True):
        gap = min(gap, most)
        if gap <= 0 or rng.random() < 0.7:
            floors[name] = rng.randint(60, 300)
        parts[name] = floors.get(name, 0) + gap
    if not floors:  # something of a step must stay
        parts["weights"], floors["weights"] = 40, 40
    return {"parts": parts, "floors": floors}


NEXT_RUNG = Exercise(
    solution=next_rung,
    draw=draw_parts,
    contract="Find the part that lies furthest above its floor, in microseconds (a part without a floor "
    "lies above 0). The factor is the whole step over the step without that distance.",
)
