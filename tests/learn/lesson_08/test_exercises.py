"""Lesson 08: the solutions of its exercises say what the package does."""

import random

import torch

from labkit.engine.step.device import DeviceStep
from labkit.learn.lesson_08.exercises import ToySlots, draw_replays, move_on


def test_the_solution_moves_slots_as_the_package_does():
    rng = random.Random(1)
    for _ in range(50):
        drawn = draw_replays(rng)
        ours, theirs = (
            ToySlots(
                torch.tensor([*drawn["context_lens"], -1]),
                torch.zeros(len(drawn["context_lens"]) + 1, dtype=torch.int64),
            )
            for _ in range(2)
        )
        for mapping, tokens in drawn["batches"]:
            move_on(ours, torch.tensor(mapping), torch.tensor(tokens))
            DeviceStep(theirs, None, None).advance(torch.tensor(tokens), torch.tensor(mapping))
        assert ours.context_lens.tolist() == theirs.context_lens.tolist()
        assert ours.last_token_ids.tolist() == theirs.last_token_ids.tolist()
