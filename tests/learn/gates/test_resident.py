"""What a slot must hold when a step is launched: told by slot, request and value where it does not."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.resident import check_mapping, check_state, launches_proven, on_host, wrong_padding

DRAWN = SamplingParams(9, temperature=0.5, top_k=3, top_p=0.9, seed=-1, stop_on_eos=False)


@pytest.fixture
def engine():
    """Two requests that have their slots: one greedy, one that draws."""
    engine = make_engine(options=LADDER["06"].options, prefix_cache=False, max_batch_size=3)
    engine.add_request((1, 2, 3), SamplingParams(9, stop_on_eos=False))
    engine.add_request((4, 5), DRAWN)
    for _ in range(2):
        engine.step()
    return engine


def test_the_host_knows_of_a_greedy_request_what_its_step_looks_at(engine):
    (greedy, first), (drawn, second) = engine.scheduler.running.items()
    assert on_host(greedy, first) == {
        "context_lens": 4,
        "last_token_ids": greedy.output_token_ids[-1],
        "temperatures": 0.0,
    }
    assert on_host(drawn, second) == {
        **{"context_lens": 3, "last_token_ids": drawn.output_token_ids[-1], "temperatures": 0.5},
        **{"top_ks": 3, "top_ps": 0.9, "seeds": -1, "draws": 2},
    }


def test_a_mapping_names_a_slot_per_request_and_padding_behind_them(engine):
    slots, requests = engine.decode_step.slots, list(engine.scheduler.running)
    mapping = check_mapping(slots, requests)
    assert sorted(mapping) == sorted(slots.slot_of.values())
    slots.slot_mapping[2] = mapping[0]
    with pytest.raises(BrokenContract, match=rf"slot_mapping\[2\] is {mapping[0]} in a step of 2 requests"):
        check_mapping(slots, requests)
    slots.slot_mapping[1] = mapping[0]
    with pytest.raises(BrokenContract, match="has request 0 and request 1"):
        check_mapping(slots, requests)


@pytest.mark.parametrize(
    "name", ["context_lens", "last_token_ids", "temperatures", "top_ks", "seeds", "draws"]
)
def test_a_number_that_is_off_is_told_by_its_tensor(engine, name):
    slots = engine.decode_step.slots
    request, session = list(engine.scheduler.running.items())[1]
    slot = slots.slot_of[session]
    check_state(slots, request, session, slot)
    getattr(slots, name)[slot] += 1
    with pytest.raises(BrokenContract, match=rf"{name}\[{slot}\] is \S+ for request 1, expected"):
        check_state(slots, request, session, slot)


def test_launches_of_the_package_are_proven(engine):
    with launches_proven(engine):
        while engine.has_work:
            engine.step()
    assert wrong_padding(engine) == ""


def test_a_padding_slot_that_moved_is_told(engine):
    engine.decode_step.slots.context_lens[3] = 0
    assert "0" in wrong_padding(engine) and "-1" in wrong_padding(engine)
