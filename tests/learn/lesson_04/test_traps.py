"""Lesson 04's traps: what is wrong on purpose is wrong in just that way."""

import pytest
import torch
from helpers import make_engine

from labkit import SamplingParams, lab
from labkit.kvcache import IdentityPosWrite
from labkit.ladder import LADDER
from labkit.learn.lesson_04.traps import KeptByLength


def test_the_second_write_goes_to_the_slots_of_the_first():
    write, (k_cache, v_cache) = KeptByLength(torch.device("cpu")), torch.zeros(2, 4, 1, 4, 2)
    for number, slots in ((1.0, [1, 2]), (2.0, [2, 3])):
        new = torch.full((2, 1, 2), number)
        assert write.write(k_cache, v_cache, new, new, range(2), [3, 0], slots) == "identity_pos"
    assert k_cache[3, 0, :, 0].tolist() == [0, 2, 0, 0] and v_cache[0, 0, :, 0].tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("batch_idx", "slots", "path"), [([0, 1], [2, 2], "full_batch"), ([1], [2], "generic")]
)
def test_other_batches_are_left_to_the_rung_below(batch_idx, slots, path):
    write, new = KeptByLength(torch.device("cpu")), torch.ones(2, 2, 1, 2)
    taken = write.write(*torch.zeros(2, 4, 1, 4, 2), *new, batch_idx, [3, 0][: len(slots)], slots)
    assert taken == path and write.kept == {}


def test_the_blocks_add_up_and_the_tokens_are_others():
    made = []
    for part in (IdentityPosWrite, KeptByLength):
        engine = make_engine(options=LADDER["04"].options, parts={"kv_write": part})
        outputs = engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=16, stop_on_eos=False))
        made.append([output.token_ids for output in outputs])
        engine.check_integrity()
    assert made[0] != made[1]


def test_the_gate_refuses_it():
    report = lab.start("04").check(kv_write=KeptByLength)
    assert (
        not report.ok and "by none that was kept of another: after a write to slots [2, 0, 1]" in report.text
    )
