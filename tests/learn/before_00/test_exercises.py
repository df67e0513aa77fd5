"""The exercises before lesson 00: wrong answers get their own words, right ones are right in any clothes."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, named, refused

from labkit.learn import not_attempted
from labkit.learn.before_00.chain import Chain
from labkit.learn.before_00.exercises import KERNEL_BEGINS, STEP_TIME


@pytest.mark.parametrize("exercise", [KERNEL_BEGINS, STEP_TIME], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


def waits_for_the_launch_before(issued, gpu_us):
    return [max(t, (issued[i - 1] + gpu_us) if i else 0) for i, t in enumerate(issued)]


def takes_a_launch_for_a_kernel(issued, gpu_us):
    begins = []
    for t in issued:
        begins.append(max(t, begins[-1] + 1 if begins else 0))
    return begins


def changes_its_argument(issued, gpu_us):
    for i in range(1, len(issued)):
        issued[i] = max(issued[i], issued[i - 1] + gpu_us)
    return issued


WRONG_BEGINS = {
    "the skeleton": (lambda issued, gpu: issued, "one after another"),
    "the ends": (lambda issued, gpu: [t + gpu for t in issued], "gave [7], expected [5]"),
    "one pace for all": (lambda issued, gpu: [issued[0] + i * gpu for i in range(len(issued))], "it waits"),
    "waits for the launch before": (waits_for_the_launch_before, "expected [1, 6, 11]"),
    "one microsecond": (takes_a_launch_for_a_kernel, "when kernel 0 has ended"),
    "adds both": (lambda issued, gpu: list(accumulate(issued, lambda a, t: max(a, t) + gpu)), "it waits"),
    "the earlier": (lambda issued, gpu: [min(t, i * gpu) for i, t in enumerate(issued)], "gave [0]"),
    "all at once": (lambda issued, gpu: [max(issued)] * len(issued), "it waits"),
    "forgets the pause": (
        lambda issued, gpu: list(accumulate(issued, lambda a, t: a + max(gpu, 5 * (gpu < 5)))),
        "After a pause",
    ),
    "no launch": (lambda issued, gpu: KERNEL_BEGINS.solution(issued, gpu) or [0], "No launch, no kernel."),
    "changes its argument": (changes_its_argument, "it changed its argument issued"),
    "gives nothing back": (lambda issued, gpu: None, "A function without `return` gives None"),
}

WRONG_STEPS = {
    "the skeleton": (lambda n, host, gpu, read: n * host, "The GPU is the slower one"),
    "the GPU alone": (lambda n, host, gpu, read: n * gpu, "The host is the slower one"),
    "the sum": (lambda n, host, gpu, read: n * (host + gpu), "ten launches"),
    "the faster": (lambda n, host, gpu, read: n * min(host, gpu), "The host is the slower one"),
    "forgets the read-back": (lambda n, host, gpu, read: n * max(host, gpu), "nothing overlaps"),
    "reads and adds both": (
        lambda n, host, gpu, read: n * (host + gpu) if read else n * max(host, gpu),
        "waits for the last kernel",
    ),
    "one kernel more": (
        lambda n, host, gpu, read: n * max(host, gpu) + gpu * read,
        "The GPU begins when the first launch is done",
    ),
    "one launch more": (
        lambda n, host, gpu, read: n * max(host, gpu) + host * read,
        "nothing overlaps",
    ),
    "the slower once more": (
        lambda n, host, gpu, read: (n + read) * max(host, gpu),
        "nothing overlaps",
    ),
    "in words": (lambda n, host, gpu, read: "50", "gave '50', expected 50"),
}


@refused((KERNEL_BEGINS, WRONG_BEGINS), (STEP_TIME, WRONG_STEPS))
def test_a_plausible_wrong_answer_is_refused_in_words_of_its_own(exercise, attempt, words):
    assert words in exercise.grade(named(attempt))


def in_numpy(issued, gpu_us):
    order = np.arange(len(issued)) * gpu_us
    return np.maximum.accumulate(np.array(issued, dtype=float) - order) + order


@accepted(
    (
        KERNEL_BEGINS,
        {
            "a largest so far": in_numpy,
            "an accumulate": lambda issued, gpu: list(accumulate(issued, lambda a, t: max(a + gpu, t))),
            "a tensor": lambda issued, gpu: torch.tensor(KERNEL_BEGINS.solution(issued, gpu)),
        },
    ),
    (
        STEP_TIME,
        {
            "the property": lambda *chain: Chain(*chain).step_us,
            "the smaller once": lambda n, host, gpu, read: n * max(host, gpu) + min(host, gpu) * read,
            "a float of NumPy": lambda *chain: np.float64(Chain(*chain).step_us),
        },
    ),
)
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert is_right(exercise, named(attempt))
