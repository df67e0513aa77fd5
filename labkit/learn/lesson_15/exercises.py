"""Lesson 15: the exercises on the bytes of a workload, and on the part of a step to attack next."""

from random import Random

from labkit.learn.exercise import Case, Exercise


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
