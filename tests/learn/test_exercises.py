"""Every exercise: its solution is right, its empty cell is not attempted, likely mistakes are refused."""

from importlib import import_module

import pytest

from labkit.learn import Exercise, not_attempted
from labkit.paths import ROOT

FOUND = [
    each
    for path in sorted((ROOT / "labkit" / "learn").glob("*/exercises.py"))
    for each in vars(import_module(f"labkit.learn.{path.parent.name}.{path.stem}")).values()
    if isinstance(each, Exercise)
]
EXERCISES = {exercise.name: exercise for exercise in FOUND}


def as_solved(name, change):
    """The solution's answer, changed."""
    return lambda *given: change(EXERCISES[name].solution(*given), *given)


def wait_for_each_copy(messages, buffers, copy):
    for i, message in enumerate(messages):
        buffers[i % 2][: len(message)] = message
        copy(buffers[i % 2], len(message)).wait()


def wait_for_none(messages, buffers, copy):
    for i, message in enumerate(messages):
        buffers[i % 2][: len(message)] = message
        copy(buffers[i % 2], len(message))


# Likely mistakes in each: a second one where it is refused by another call, or with another sentence.
WRONG = {
    "kernel_begins": [lambda issued, us: [max(t, us * i) for i, t in enumerate(issued)]],
    "step_time": [
        lambda kernels, host, gpu, read: kernels * (host + gpu) if read else kernels * max(host, gpu)
    ],
    "plan": [
        lambda *_: None,
        as_solved("plan", lambda steps, *_: [step for step in steps if step[0] == "write"]),
        as_solved("plan", lambda steps, *_: sorted(steps, reverse=True)),
    ],
    "offsets": [
        lambda b, h, ids, slot, strides, D, BLOCK_D: [
            ids[b] * strides[0] + h * strides[1] + slot * D + d for d in range(D)
        ],
        lambda b, h, ids, slot, strides, D, BLOCK_D: [
            ids[b] * strides[0] + h * strides[1] + slot * strides[2] + d for d in range(BLOCK_D)
        ],
    ],
    "send_all": [wait_for_each_copy, wait_for_none],
    "handed_out_at": [
        lambda launch, gpu, accept, steps, ahead: [(i + 1) * (launch + gpu + accept) for i in range(steps)],
        lambda launch, gpu, accept, steps, ahead: [launch + (i + 1) * gpu + accept for i in range(steps)],
    ],
    "read_too_early": [as_solved("read_too_early", lambda wrong, *_: wrong[:1])],
    "in_order": [lambda bits: bits & 0x7FFF],
    "whose_row": [as_solved("whose_row", lambda found, *_: found or (-1, -1))],
    "tokens_computed": [
        lambda texts, size: [len(text) for text in texts],
        as_solved("tokens_computed", lambda computed, texts, size: [c - (c == 1) for c in computed]),
    ],
    "diagnose": [lambda patient: "undo", lambda patient: "no such contract"],
}


def test_mistakes_are_tried_in_every_exercise():
    assert WRONG.keys() == EXERCISES.keys() and all(WRONG.values())


@pytest.mark.slow
@pytest.mark.parametrize("exercise", FOUND, ids=lambda exercise: exercise.name)
def test_the_solution_is_right_the_empty_cell_not_attempted_and_mistakes_are_refused(exercise):
    assert exercise.grade(exercise.solution) == f"{exercise.name}: right, in all 100 random calls."
    assert exercise.grade(lambda *_: not_attempted()) == f"{exercise.name}: not attempted yet."
    for wrong in WRONG[exercise.name]:
        verdict = exercise.grade(wrong)
        assert verdict.startswith(f"{exercise.name}: with ") and exercise.contract in verdict
