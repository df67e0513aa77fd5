"""What breaks if rows or room come too late, or a failed step is not forgotten."""

import pytest
from helpers import GREEDY, SEEDED, tokens_alone
from prefilled_engines import PROMPTS, THIS, prefilled

from labkit.learn.lesson_06 import traps


def test_a_late_row_sends_a_token_to_the_first_block_and_is_right_a_step_later():
    """Request 1, of two tokens, is at its boundary in the third step, and request 0 in the second."""
    engine = prefilled(THIS, PROMPTS[:2], parts={"block_tables": traps.LateRows})
    slots, spoilt = engine.decode_step.slots, []
    for _ in range(4):
        spoilt.append(traps.overwritten(engine))
        rows = [slots.block_tables[0, slots.slot_of[s], 1].item() for s in engine.scheduler.running.values()]
    first = ["place 0 of block 0, which request 0 holds"]
    assert spoilt == [[], first, first, []]
    assert rows == [session.block_ids_per_layer[0][1] for session in engine.scheduler.running.values()]
    engine.check_integrity()  # the host's lists are right


def test_room_made_before_the_forward_overwrites_nothing():
    engine = prefilled(THIS)
    assert [traps.overwritten(engine) for _ in range(8)] == [[]] * 8


def test_room_made_after_it_overwrites_the_first_key_of_block_0():
    engine = prefilled(THIS)
    traps.overwritten(engine)
    at_boundary = {}
    with traps.room_after_the_step(engine):
        for _ in range(4):
            held = tuple(s.num_tokens for s in engine.scheduler.running.values())
            at_boundary[held] = traps.overwritten(engine)
    assert "launch" not in vars(engine.decode_step)
    for held, places in at_boundary.items():
        assert places == ["place 0 of block 0, which request 0 holds"] * any(n % 4 == 0 for n in held)
    engine.check_integrity()  # the host's lists are right


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("forgets", [True, False])
def test_after_a_failed_step_the_text_is_whole_only_if_the_device_is_told_anew(params, forgets):
    engine = prefilled(THIS, params=params)
    engine.step()
    first = {r.request_id: list(r.output_token_ids) for r in engine.scheduler.running}
    table = traps.fail_after_the_device(engine, forgets)
    assert (table["host, before"] == table["host, after"]).all()
    assert (table["device, before"] == table["host, before"]).all()
    assert (table["device, after"] == table["device, before"] + 1).all()
    assert (table["has a slot"] == (not forgets)).all()
    engine.check_integrity()
    assert not {"forget"} & vars(engine.decode_step.slots).keys()
    made = traps.finish(engine)
    whole = [(*first[i], *made[i]) == tokens_alone(p, params) for i, p in enumerate(PROMPTS)]
    assert all(whole) if forgets else not all(whole)
