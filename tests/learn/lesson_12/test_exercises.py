"""The graders of lesson 12: wrong answers are refused in the contract's words, right ones are right."""

import random

import numpy as np
import pytest
import torch

from labkit.learn import not_attempted
from labkit.learn.lesson_12.exercises import IN_ORDER, KEPT_IDS, draw_bits, draw_weights


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [IN_ORDER, KEPT_IDS], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- numbers of 16 bits ------------------------------------------------------------------------------------


def signed(bits):
    return bits - 2**16 if bits & 0x8000 else bits


WRONG_NUMBERS = {
    "the bits": (lambda bits: bits, "Its highest bit is the sign"),
    "two's complement": (signed, "Its highest bit is the sign"),
    "all bits turned": (lambda bits: bits ^ 0xFFFF, "in their order already"),
    "all bits of negative ones turned": (
        lambda bits: bits ^ 0xFFFF if bits & 0x8000 else bits,
        "Its highest bit is the sign",
    ),
    "a gap at 0": (
        lambda bits: signed(bits) ^ 0x7FFF if bits & 0x8000 else bits,
        "Its highest bit is the sign",
    ),
    "-0.0 is below 0.0": (
        lambda bits: -(bits & 0x7FFF) - 1 if bits & 0x8000 else bits,
        "Its highest bit is the sign",
    ),
    "from 0 on": (
        lambda bits: 2**15 - (bits & 0x7FFF) if bits & 0x8000 else bits + 2**15,
        "in their order already",
    ),
    "the number": (
        lambda bits: float(np.array(bits, dtype=np.uint16).view(np.float16)),
        "in their order already",
    ),
    "without a sign": (lambda bits: bits & 0x7FFF, "Its highest bit is the sign"),
    "negative infinity is the least": (
        lambda bits: -(2**15) if bits == 0xFC00 else IN_ORDER.solution(bits),
        "minus infinity",
    ),
    "a zero of its own": (
        lambda bits: -1 if bits == 0x8000 else IN_ORDER.solution(bits),
        "a tie has one key",
    ),
    "only 10 bits": (lambda bits: IN_ORDER.solution(bits & 0x83FF), "in their order already"),
    "nothing": (lambda bits: None, "in their order already"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_a_wrong_number_is_refused_in_the_contract_s_words(attempt, words):
    assert words in IN_ORDER.grade(attempt)


def by_numpy(bits):
    """Without bits: how many float16 numbers lie between 0 and this one."""
    number = np.array(bits, dtype=np.uint16).view(np.float16)
    return int(np.copysign(1, number)) * int(np.abs(number).view(np.uint16))


RIGHT_NUMBERS = {
    "arithmetic": lambda bits: bits if bits < 2**15 else 2**15 - bits,
    "NumPy": by_numpy,
    "a tensor": lambda bits: torch.tensor(IN_ORDER.solution(bits)),
    "a float": lambda bits: float(IN_ORDER.solution(bits)),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_NUMBERS.values(), ids=RIGHT_NUMBERS)
def test_a_right_number_is_right_in_any_clothes(attempt):
    assert IN_ORDER.grade(attempt) == f"in_order: right, all {len(IN_ORDER.cases)} cases."


def test_keys_are_in_the_order_of_the_numbers_without_a_gap():
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    keys = np.array([IN_ORDER.solution(bits) for bits in range(2**16)])
    finite = ~np.isnan(numbers)
    order = np.argsort(numbers[finite], kind="stable")
    steps = np.diff(keys[finite][order])
    assert set(steps.tolist()) == {0, 1} and (steps == 0).sum() == 1  # the zeros


# --- which tokens are left ---------------------------------------------------------------------------------


def kept(weights, top_k, dropped, *wrong):
    """The solution with some things wrong."""
    ids = list(range(len(weights)))
    if "top-p first" in wrong:
        ids = [i for i in ids if i in kept(weights, 0, dropped)]
    ordered = sorted((weights[i] for i in ids), reverse=True)
    if "k of 0 keeps none" in wrong and top_k == 0:
        return []
    if 0 < top_k <= len(ids):
        cut = ordered[top_k - 1]
        if "the k smallest" in wrong:
            cut = ordered[-top_k]
            ids = [i for i in ids if weights[i] <= cut]
        elif "ties go" in wrong:
            ids = sorted(sorted(ids, key=lambda i: (-weights[i], i))[:top_k])
        elif "above the cut" in wrong:
            ids = [i for i in ids if weights[i] > cut] or ids[:1]
        else:
            ids = [i for i in ids if weights[i] >= cut]
    elif "too large a k keeps one" in wrong and top_k > len(ids):
        ids = ids[:1]
    if "top-p first" in wrong or dropped == 0:
        return ids
    mass = sum(weights) if "of the whole row" in wrong else sum(weights[i] for i in ids)
    ascending = sorted(ids, key=lambda i: (weights[i], -i if "higher ids go first" in wrong else i))
    so_far = 0
    for place, i in enumerate(ascending):
        so_far += weights[i]
        passed = (
            100 * so_far >= dropped * mass
            if "at the limit it stays" in wrong
            else 100 * so_far > dropped * mass
        )
        if passed:
            if "the crossing one goes" in wrong:
                place += 1
            if "ties stay together" in wrong:
                return sorted(j for j in ids if weights[j] >= weights[i])
            left = ascending[place:]
            return left if "in order of weight" in wrong else sorted(left)
    return [] if "may keep none" in wrong else ascending[-1:]


def wrongly(*what):
    return lambda weights, top_k, dropped: kept(weights, top_k, dropped, *what)


def eats_the_weights(weights, top_k, dropped):
    found = kept(weights, top_k, dropped)
    weights.sort()
    return found


WRONG_IDS = {
    "k of 0 keeps none": (wrongly("k of 0 keeps none"), "Both are off"),
    "the k smallest": (wrongly("the k smallest"), "The two largest"),
    "ties go": (wrongly("ties go"), "all that tie stay"),
    "above the cut": (wrongly("above the cut"), "The two largest"),
    "too large a k keeps one": (wrongly("too large a k keeps one"), "More than there are is off"),
    "the crossing one goes": (wrongly("the crossing one goes"), "that one crosses, and is kept"),
    "at the limit it stays": (wrongly("at the limit it stays"), "Exactly 50 of 100 may go"),
    "higher ids go first": (wrongly("higher ids go first"), "lower ids go first"),
    "ties stay together": (wrongly("ties stay together"), "Of those that tie"),
    "of the whole row": (wrongly("of the whole row"), "Of what top-k has left, and not of all"),
    "top-p first": (wrongly("top-p first"), "of what top-k has left"),
    "in order of weight": (wrongly("in order of weight"), "that one crosses"),
    "weights": (lambda weights, top_k, dropped: [weights[i] for i in kept(weights, top_k, dropped)], "ids"),
    "flags": (
        lambda weights, top_k, dropped: [i in kept(weights, top_k, dropped) for i in range(len(weights))],
        "Both are off",
    ),
    "eats the weights": (eats_the_weights, "changed its argument weights"),
    "nothing": (lambda weights, top_k, dropped: None, "A function without `return` gives None"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_IDS.values(), ids=WRONG_IDS)
def test_wrong_ids_are_refused_in_the_contract_s_words(attempt, words):
    verdict = KEPT_IDS.grade(attempt)
    assert words in verdict, verdict


def by_removal(weights, top_k, dropped):
    """Another way: tokens leave one by one, the next the lightest of lowest id."""
    left = dict(enumerate(weights))
    if top_k:
        kth = sorted(weights)[max(0, len(weights) - top_k)]
        left = {i: weight for i, weight in left.items() if weight >= kth}
    may_go = dropped * sum(left.values())
    while len(left) > 1:
        i = min(left, key=lambda i: (left[i], i))
        may_go -= 100 * left[i]
        if may_go < 0 or not dropped:
            break
        del left[i]
    return list(left)


RIGHT_IDS = {
    "nothing wrong": wrongly(),
    "by removal": by_removal,
    "a tuple": lambda **given: tuple(kept(*given.values())),
    "an array": lambda **given: np.array(kept(*given.values())),
    "a tensor": lambda **given: torch.tensor(kept(*given.values())),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_IDS.values(), ids=RIGHT_IDS)
def test_right_ids_are_right_in_any_clothes(attempt):
    assert KEPT_IDS.grade(attempt) == f"kept_ids: right, all {len(KEPT_IDS.cases)} cases."


def test_random_rows_tie_and_cut_by_both():
    rng = random.Random(0)
    drawn = [draw_weights(rng) for _ in range(200)]
    found = [KEPT_IDS.solution(**each) for each in drawn]
    for wrong in ("ties go", "higher ids go first", "of the whole row", "top-p first"):
        differs = [kept(*each.values(), wrong) != right for each, right in zip(drawn, found, strict=True)]
        assert sum(differs) >= 3, wrong
    bits = [draw_bits(rng)["bits"] for _ in range(100)]
    assert 0x8000 in bits and 20 < sum(each >= 2**15 for each in bits) < 95
