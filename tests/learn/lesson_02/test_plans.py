"""Lesson 02's plans, carried out on a pool: what each request reads then, and what is no plan."""

from itertools import permutations

import pytest

from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_02.exercises import plan
from labkit.learn.lesson_02.plans import play_plan

TWO_SHARERS = {"last_blocks": [7, 7], "lengths": [2, 2], "holders": [2, 2], "free": [3], "block_size": 4}


def played(*operations, **arguments):
    return play_plan(lambda *_: list(operations), **{**TWO_SHARERS, **arguments})


def test_what_a_plan_does_is_told_by_name():
    assert played(("copy", 7, 3), ("write", 0, 3, 2), ("write", 1, 7, 2)) == {
        "A reads": [1, 2, 100],
        "B reads": [1, 2, 200],
        "blocks taken": [3],
        "blocks copied": 1,
    }


def test_a_holder_outside_the_batch_is_looked_at_too():
    seen = played(("write", 0, 7, 2), last_blocks=[7], lengths=[2], holders=[2])
    assert seen["whoever else holds block 7 finds"] == [1, 2, 100] and seen["blocks copied"] == 0


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([("write", 0, 3, 2), ("copy", 7, 3), ("write", 1, 7, 2)], "every copy comes before the first"),
        ([("write", 0, 7, 2), ("write", 1, 7, 2)], "A and B both write to slot 2 of block 7"),
        ([("write", 0, 7, 2)], "The new token of B, request 1, is never written"),
        ([("write", 0, 7, 2), ("write", 0, 3, 2)], "A, request 0, has one new token, and two writes"),
        ([("write", 0, 7)], r"It takes \('write', b, block, slot\)"),
    ],
)
def test_what_is_no_plan_is_refused(operations, words):
    with pytest.raises(BrokenContract, match=words):
        played(*operations)


def test_of_three_sharers_any_can_stay_and_take_any_of_the_two_blocks():
    arguments = {"last_blocks": [7] * 3, "lengths": [2] * 3, "holders": [3] * 3, "free": [3, 5, 1]}
    seen = []
    for blocks in permutations([7, 3, 5]):
        copies = [("copy", 7, block) for block in blocks if block != 7]
        writes = [("write", b, block, 2) for b, block in enumerate(blocks)]
        answer = copies + writes
        seen.append(play_plan(lambda *_, answer=answer: answer, **arguments, block_size=4))
    assert seen == [play_plan(plan, **arguments, block_size=4)] * 6
