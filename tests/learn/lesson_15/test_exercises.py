"""The graders of lesson 15: wrong answers are refused in the contract's words, right ones are right."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from labkit import bench
from labkit.bench.limit import decode_weight_bytes, workload_limit
from labkit.learn import not_attempted
from labkit.learn.lesson_15.exercises import LIMIT_BYTES, NEXT_RUNG, draw_parts, draw_workload, limit_bytes
from labkit.results import amdahl


@pytest.mark.parametrize("exercise", [LIMIT_BYTES, NEXT_RUNG], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- limit_bytes -----------------------------------------------------------------------------------------


def turns(requests, size, steps):
    return max(steps, math.ceil(requests * steps / size))


def grown(requests, prompt, steps):
    return requests * (steps * prompt + steps * (steps - 1) // 2 + steps)


def bytes_by(steps_of=lambda new: new - 1, batches_of=turns, kv_of=grown):
    """The solution with one rule of its own."""

    def limit(weight_bytes, kv_bytes_per_token, num_requests, max_batch_size, prompt_len, new_tokens):
        steps = steps_of(new_tokens)
        weights = batches_of(num_requests, max_batch_size, steps) * weight_bytes
        return weights + kv_of(num_requests, prompt_len, steps) * kv_bytes_per_token

    return limit


def weights_by(batches_of):
    return bytes_by(batches_of=batches_of)


def kv_by(kv_of):
    return bytes_by(kv_of=kv_of)


def whole_batches(requests, size):
    return -(-requests // size) * size


def with_the_weights_in_the_prefill(weight_bytes, **rest):
    return LIMIT_BYTES.solution(weight_bytes, **rest) + weight_bytes


def kv_of_both_kinds(kv_bytes_per_token, **rest):
    return LIMIT_BYTES.solution(kv_bytes_per_token=2 * kv_bytes_per_token, **rest)


GROWS = "The cache grows"
EACH_OWN = "Keys and values are each request's own"
TURNS = "Requests may take turns"
WRONG_LIMITS = {
    "the first token, too": (bytes_by(steps_of=lambda new: new), "The prefill makes a request's first token"),
    "two tokens by the prefill": (bytes_by(steps_of=lambda new: new - 2), "The prefill makes"),
    "weights for each token": (weights_by(lambda r, b, s: r * s), "once for the whole batch"),
    "weights once": (weights_by(lambda r, b, s: 1), "11 tokens take 10 decode steps"),
    "one batch for all": (weights_by(lambda r, b, s: s), "twice as many steps"),
    "batches rounded down": (weights_by(lambda r, b, s: r // b * s), "also where its batch is not full"),
    "a batch at least, rounded down": (weights_by(lambda r, b, s: max(1, r // b) * s), TURNS),
    "one more than rounded down": (weights_by(lambda r, b, s: (r // b + 1) * s), "The prefill makes"),
    "parts of a batch": (weights_by(lambda r, b, s: r / b * s), "also where its batch is not full"),
    "parts of a step": (weights_by(lambda r, b, s: max(s, r * s / b)), "There is no half step"),
    "rounded down at the end": (weights_by(lambda r, b, s: max(s, r * s // b)), "There is no half step"),
    "to the nearest step": (weights_by(lambda r, b, s: max(s, round(r * s / b))), "There is no half step"),
    "one batch behind the other": (weights_by(lambda r, b, s: -(-r // b) * s), "no need for 20"),
    "full batches alone": (weights_by(lambda r, b, s: -(-r * s // b)), "also where its batch is not full"),
    "a step more": (weights_by(lambda r, b, s: turns(r, b, s) + 1), "11 tokens take 10 decode steps"),
    "the batch is what counts": (weights_by(lambda r, b, s: b * s), "once for the whole batch"),
    "reads only": (kv_by(lambda r, p, s: r * (s * p + s * (s - 1) // 2)), "writes those of one token"),
    "writes only": (kv_by(lambda r, p, s: r * s), "writes those of one token"),
    "the prompt only": (kv_by(lambda r, p, s: r * s * (p + 1)), GROWS),
    "the last length": (kv_by(lambda r, p, s: r * s * (p + s)), GROWS),
    "the mean length, rounded": (
        kv_by(lambda r, p, s: r * s * (p + 1 + (s - 1) // 2)),
        "Rows that nobody has",
    ),
    "grows by two": (kv_by(lambda r, p, s: r * (s * p + s * (s - 1) + s)), GROWS),
    "the first token is in the cache": (kv_by(lambda r, p, s: grown(r, p + 1, s)), "The only step reads"),
    "counts from 1": (kv_by(lambda r, p, s: r * sum(p + i for i in range(1, s))), "The only step reads"),
    "writes the whole cache": (kv_by(lambda r, p, s: 2 * grown(r, p, s)), "The only step reads"),
    "the whole text at once": (kv_by(lambda r, p, s: r * (p + s)), GROWS),
    "of one request": (kv_by(lambda r, p, s: grown(1, p, s)), EACH_OWN),
    "a prompt of 5": (kv_by(lambda r, p, s: grown(r, 5, s)), "the prompt has 7 tokens here"),
    "the prompt is prefill": (kv_by(lambda r, p, s: grown(r, 0, s)), "The only step reads"),
    "keys and values": (kv_of_both_kinds, "The only step reads"),
    "the last batch full": (
        lambda num_requests, max_batch_size, **rest: (
            LIMIT_BYTES.solution(num_requests=num_requests, max_batch_size=max_batch_size, **rest)
            + (whole_batches(num_requests, max_batch_size) - num_requests)
            * grown(1, rest["prompt_len"], rest["new_tokens"] - 1)
            * rest["kv_bytes_per_token"]
        ),
        "Rows that nobody has read no keys and values",
    ),
    "the prefill's weights": (with_the_weights_in_the_prefill, "The prefill makes"),
    "a step at least": (bytes_by(steps_of=lambda new: max(1, new - 1)), "there is nothing to decode"),
    "both in a tuple": (lambda **given: (LIMIT_BYTES.solution(**given), 0), "The prefill makes"),
    "text": (lambda **given: f"{LIMIT_BYTES.solution(**given)} bytes", "The prefill makes"),
    "gigabytes": (lambda **given: LIMIT_BYTES.solution(**given) / 1e9, "The prefill makes"),
    "nothing": (lambda **given: None, "A function without `return` gives None"),
    "divides by what can be 0": (
        lambda **given: 1 // given["kv_bytes_per_token"],
        "raised ZeroDivisionError",
    ),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_LIMITS.values(), ids=WRONG_LIMITS)
def test_another_limit_is_refused_in_the_contract_s_words(attempt, words):
    assert words in LIMIT_BYTES.grade(attempt)


def step_by_step(weight_bytes, kv_bytes_per_token, num_requests, max_batch_size, prompt_len, new_tokens):
    """Requests that take turns, those with the fewest tokens first."""
    made, moved = [1] * num_requests, 0
    while waiting := sorted((n, i) for i, n in enumerate(made) if n < new_tokens):
        moved += weight_bytes
        for n, i in waiting[:max_batch_size]:
            moved += kv_bytes_per_token * (prompt_len + n - 1 + 1)
            made[i] += 1
    return moved


RIGHT_LIMITS = {
    "step by step": step_by_step,
    "by a mean length": kv_by(lambda r, p, s: r * s * (p + (s + 1) / 2)),
    "a number of NumPy": lambda **given: np.int64(LIMIT_BYTES.solution(**given)),
    "an array": lambda **given: np.array(LIMIT_BYTES.solution(**given)),
    "a tensor": lambda **given: torch.tensor(LIMIT_BYTES.solution(**given)),
    "a float": lambda **given: float(LIMIT_BYTES.solution(**given)),
    "summed by NumPy": kv_by(lambda r, p, s: r * np.arange(p + 1, p + s + 1).sum()),
}


@pytest.mark.parametrize("attempt", RIGHT_LIMITS.values(), ids=RIGHT_LIMITS)
def test_the_limit_is_right_in_any_clothes(attempt):
    assert LIMIT_BYTES.grade(attempt) == f"limit_bytes: right, all {len(LIMIT_BYTES.cases)} cases."


def test_the_formula_is_the_package_s_limit():
    rng = random.Random(1)
    gpt2 = bench.on_paper()
    weights = decode_weight_bytes(gpt2)
    workloads = [(65, 64, 2, 11), *(tuple(draw_workload(rng).values())[2:] for _ in range(50))]
    for workload in workloads:
        requests, size, prompt, new = workload
        limit = workload_limit(gpt2, [prompt] * requests, [new] * requests, size, 1.0)
        ours = limit_bytes(weights, 2 * gpt2.config.kv_values_per_token, *workload)
        assert ours == limit.num_bytes


# --- next_rung -------------------------------------------------------------------------------------------


def gap(us, floor):
    return us - floor


def without(parts, part, gaps):
    total = sum(parts.values())
    return total / (total - gaps[part])


def found_by(gap_of=gap, factor=without, *, unknown=0.0, nothing=True, keep=lambda part, floors: True):
    """The solution with one rule of its own."""

    def next_rung(parts, floors):
        gaps = {
            part: gap_of(us, floors.get(part, unknown)) for part, us in parts.items() if keep(part, floors)
        }
        part = max(gaps, key=gaps.get)
        if nothing and gaps[part] <= 0:
            return None, 1.0
        real = {name: us - floors.get(name, 0) for name, us in parts.items()}
        return part, factor(parts, part, real)

    return next_rung


def a_part_without_a_floor_first(parts, floors):
    free = {part: us for part, us in parts.items() if part not in floors}
    if not free:
        return NEXT_RUNG.solution(parts, floors)
    part = max(free, key=free.get)
    return part, without(parts, part, free)


def knows_only_floors(parts, floors):
    gaps = {part: parts[part] - floors[part] for part in floors}
    part = max(gaps, key=gaps.get)
    return (part, without(parts, part, gaps)) if gaps[part] > 0 else (None, 1.0)


def any_distance(parts, floors):
    gaps = {part: abs(us - floors.get(part, 0)) for part, us in parts.items()}
    part = max(gaps, key=gaps.get)
    return part, without(parts, part, gaps)


def adds_zeros(parts, floors):
    for part in parts:
        floors.setdefault(part, 0)
    return NEXT_RUNG.solution(parts, floors)


def to_the_floors(parts, floors):
    part, _ = NEXT_RUNG.solution(parts, floors)
    return part, sum(parts.values()) / sum(floors.values())


FAR_ABOVE = "what counts is how far it lies above its floor"
WHOLE_STEP = "The longest part is not the one with the most to gain"
WRONG_RUNGS = {
    "the longest": (found_by(lambda us, floor: us), FAR_ABOVE),
    "the shortest gap": (found_by(lambda us, floor: -gap(us, floor), nothing=False), FAR_ABOVE),
    "the highest floor": (found_by(lambda us, floor: floor), FAR_ABOVE),
    "the largest ratio": (
        found_by(lambda us, floor: us / floor - 1 if floor else math.inf),
        "what counts are microseconds",
    ),
    "the largest share of itself": (found_by(lambda us, floor: (us - floor) / us), "counts are microseconds"),
    "without a floor first": (a_part_without_a_floor_first, "that need not be the most"),
    "only with a floor": (knows_only_floors, "A part without a floor"),
    "no floor, no gap": (found_by(keep=lambda part, floors: part in floors), "A part without a floor"),
    "any distance": (any_distance, "That is no gap"),
    "always one": (found_by(nothing=False), "there is no next rung"),
    "nobody's name": (lambda **given: (NEXT_RUNG.solution(**given)[0] or "", 1.0), FAR_ABOVE),
    "an empty name": (
        lambda **given: (NEXT_RUNG.solution(**given)[0] or "", NEXT_RUNG.solution(**given)[1]),
        "there is no next rung",
    ),
    "none alone": (
        lambda **given: NEXT_RUNG.solution(**given) if NEXT_RUNG.solution(**given)[0] else None,
        "there is no next rung",
    ),
    "a factor of 0": (
        lambda **given: NEXT_RUNG.solution(**given) if NEXT_RUNG.solution(**given)[0] else (None, 0.0),
        "there is no next rung",
    ),
    "the part's own factor": (
        found_by(factor=lambda parts, part, gaps: parts[part] / ((parts[part] - gaps[part]) or 1)),
        FAR_ABOVE,
    ),
    "the part taken out": (
        found_by(factor=lambda parts, part, gaps: sum(parts.values()) / (sum(parts.values()) - parts[part])),
        FAR_ABOVE,
    ),
    "all gaps taken out": (
        found_by(
            factor=lambda parts, part, gaps: sum(parts.values()) / (sum(parts.values()) - sum(gaps.values()))
        ),
        FAR_ABOVE,
    ),
    "all gaps that are gaps": (
        found_by(
            factor=lambda parts, part, gaps: (
                sum(parts.values()) / (sum(parts.values()) - sum(max(0, g) for g in gaps.values()))
            )
        ),
        FAR_ABOVE,
    ),
    "to the floors": (to_the_floors, FAR_ABOVE),
    "upside down": (found_by(factor=lambda *given: 1 / without(*given)), FAR_ABOVE),
    "the share that goes": (found_by(factor=lambda *given: 1 - 1 / without(*given)), FAR_ABOVE),
    "percent": (found_by(factor=lambda *given: 100 * (without(*given) - 1)), FAR_ABOVE),
    "microseconds": (found_by(factor=lambda parts, part, gaps: gaps[part]), FAR_ABOVE),
    "rounded": (found_by(factor=lambda *given: round(without(*given), 2)), FAR_ABOVE),
    "the sum of two linear gains": (
        found_by(factor=lambda parts, part, gaps: 1 + gaps[part] / sum(parts.values())),
        FAR_ABOVE,
    ),
    "the part alone": (
        lambda **given: NEXT_RUNG.solution(**given)[0],
        "where a list or a tuple was expected",
    ),
    "the other way round": (lambda **given: NEXT_RUNG.solution(**given)[::-1], FAR_ABOVE),
    "a dict": (lambda **given: dict([NEXT_RUNG.solution(**given)]), "where a list or a tuple was expected"),
    "adds zeros": (adds_zeros, "changed its argument floors to"),
    "needs all floors": (
        lambda parts, floors: (
            NEXT_RUNG.solution(parts, floors) if all(floors[part] for part in parts) else None
        ),
        "raised KeyError",
    ),
    "nothing": (lambda **given: None, "A function without `return` gives None"),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_RUNGS.values(), ids=WRONG_RUNGS)
def test_another_rung_is_refused_in_the_contract_s_words(attempt, words):
    assert words in NEXT_RUNG.grade(attempt)


def by_amdahl(parts, floors):
    gaps = {part: us - floors.get(part, 0) for part, us in parts.items()}
    part = max(gaps, key=gaps.get)
    if gaps[part] <= 0:
        return None, 1.0
    share = parts[part] / sum(parts.values())
    floor = floors.get(part, 0)
    return part, amdahl(share, parts[part] / floor if floor else math.inf)


def by_numpy(parts, floors):
    names, us = list(parts), np.array(list(parts.values()), dtype=np.float32)
    gaps = us - np.array([floors.get(name, 0) for name in names], dtype=np.float32)
    best = gaps.argmax()
    if gaps[best] <= 0:
        return [None, 1]
    return [names[best], us.sum() / (us.sum() - gaps[best])]


def by_a_step_without(parts, floors):
    """The fastest of all steps in which one part is at its floor."""
    now = sum(parts.values())
    times = {part: now - us + min(us, floors.get(part, 0)) for part, us in parts.items()}
    part = min(times, key=times.get)
    return (part if times[part] < now else None), now / times[part]


RIGHT_RUNGS = {
    "lesson 08's own formula": by_amdahl,
    "the share that stays": found_by(
        factor=lambda parts, part, gaps: 1 / (1 - gaps[part] / sum(parts.values()))
    ),
    "a list, by NumPy in float32": by_numpy,
    "a tensor of it": lambda **given: (
        NEXT_RUNG.solution(**given)[0],
        torch.tensor(NEXT_RUNG.solution(**given)[1]),
    ),
    "a fraction": lambda **given: (NEXT_RUNG.solution(**given)[0], Fraction(NEXT_RUNG.solution(**given)[1])),
    "the fastest step": by_a_step_without,
}


@pytest.mark.parametrize("attempt", RIGHT_RUNGS.values(), ids=RIGHT_RUNGS)
def test_the_next_rung_is_right_in_any_clothes(attempt):
    assert NEXT_RUNG.grade(attempt) == f"next_rung: right, all {len(NEXT_RUNG.cases)} cases."


def test_random_parts_have_one_widest_gap_or_none():
    rng = random.Random(0)
    for _ in range(200):
        drawn = draw_parts(rng)
        gaps = sorted(us - drawn["floors"].get(part, 0) for part, us in drawn["parts"].items())
        assert gaps[-1] <= 0 or gaps[-1] > gaps[-2]
        assert gaps[-1] < sum(drawn["parts"].values())
