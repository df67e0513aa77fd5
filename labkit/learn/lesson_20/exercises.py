"""Lesson 20: the exercises on the bytes of a workload, and on the part of a step to attack next."""

from inspect import signature
from random import Random

from labkit.learn.exercise import Exercise


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
    solution=next_rung,
    draw=draw_parts,
    contract="Find the part that lies furthest above its floor, in microseconds (a part without a floor "
    "lies above 0). The factor is the whole step over the step without that distance.",
)
