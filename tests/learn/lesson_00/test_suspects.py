"""Lesson 00's suspects: each mistake makes a result of its own, and none is right."""

from itertools import combinations

import pytest
import torch

from labkit.kernels import paged_attention_plain
from labkit.learn.lesson_00.probe import make_probe
from labkit.learn.lesson_00.suspects import SUSPECTS, by_hand

PROBE = make_probe(torch.device("cpu"))


def test_by_hand_is_the_packages_attention():
    torch.testing.assert_close(by_hand(PROBE), paged_attention_plain(**vars(PROBE)))


@pytest.mark.parametrize("suspect", SUSPECTS, ids=lambda suspect: suspect.told[:40])
def test_a_mistake_is_not_right(suspect):
    assert (suspect.attend(PROBE) - by_hand(PROBE)).abs().max() > 0.01


def test_no_two_mistakes_have_one_result_and_each_has_its_own_words():
    made = [suspect.attend(PROBE) for suspect in SUSPECTS]
    assert all((one - other).abs().max() > 0.01 for one, other in combinations(made, 2))
    assert len({suspect.told for suspect in SUSPECTS}) == len(SUSPECTS)
