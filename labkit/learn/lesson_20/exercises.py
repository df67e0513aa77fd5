"""Lesson 20: which contract does each of the three sick engines break?"""

from collections.abc import Callable
from typing import Any

from labkit.checks import shown
from labkit.learn.exercise import BrokenContract, Exercise, answer_of

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
