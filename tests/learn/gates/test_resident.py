"""What a slot must hold, and who may have it."""

from types import SimpleNamespace

import pytest
import torch
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.engine.request import Request
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.resident import check_mapping, launches_proven, on_host, wrong_padding

REQUESTS = [Request(number, (1,), SamplingParams()) for number in (5, 6)]


def slots_of(*mapping):
    return SimpleNamespace(slot_mapping=torch.tensor(mapping))


def test_a_mapping_names_a_slot_of_its_own_per_request():
    assert check_mapping(slots_of(2, 0, 3), REQUESTS) == [2, 0]


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ((1, 1, 3), r"slot 1 has request 5 and request 6 \(row 1\)"),
        ((3, 1, 3), r"slot_mapping\[0\] is 3 for request 5, expected one of 0 to 2"),
        ((0, 1, 0), r"slot_mapping\[2\] is 0 in a step of 2 requests, expected the padding slot, 3"),
    ],
)
def test_a_wrong_mapping_is_told_with_row_and_request(mapping, told):
    with pytest.raises(BrokenContract, match=told):
        check_mapping(slots_of(*mapping), REQUESTS)


def test_of_a_greedy_request_only_what_its_step_looks_at_counts():
    session, drawing = SimpleNamespace(num_tokens=4), SamplingParams(temperature=0.8, top_k=5, seed=3)
    greedy = {"context_lens": 4, "last_token_ids": 9, "temperatures": 0.0}
    assert on_host(Request(0, (1,), SamplingParams(), [8, 9]), session) == greedy
    assert on_host(Request(0, (1,), drawing, [8, 9]), session) == greedy | {
        "temperatures": 0.8,
        "top_ks": 5,
        "top_ps": 1.0,
        "seeds": 3,
        "draws": 2,
    }


def test_the_package_s_launches_hold_and_a_stale_slot_does_not():
    engine = make_engine(options=LADDER["06"].options)
    engine.add_request((1, 2, 3), SamplingParams(9))
    slots = engine.decode_step.slots
    with launches_proven(engine):
        for _ in range(3):
            engine.step()
        slots.last_token_ids += 1
        with pytest.raises(BrokenContract, match=r"last_token_ids\[0\] is \d+ for request 0, expected \d+"):
            engine.step()


def test_a_padding_slot_of_another_length_is_told():
    engine = make_engine(options=LADDER["06"].options, max_batch_size=2)
    assert wrong_padding(engine) == ""
    engine.decode_step.slots.context_lens[2] = 0
    assert wrong_padding(engine) == "context_lens[2] is 0, expected -1."
