"""What the host sends to a device that keeps the state of each request."""

import pytest
from prefilled_engines import BELOW, THIS, prefilled

from labkit import watch


def test_the_sends_of_a_run():
    engine = prefilled(THIS, prefix_cache=True)
    sends = watch.record_sends(engine, 4)
    by_request = sends.requests.set_index(["request", "step"])
    assert by_request.loc[0, "sent"].tolist() == ["joined", "boundary", "nothing", "nothing"]
    assert by_request.loc[1, "sent"].tolist() == ["joined", "nothing", "boundary", "nothing"]
    assert by_request.loc[2, "sent"].tolist() == ["joined", "nothing", "nothing", "boundary"]
    assert by_request["took"].tolist()[:3] == ["copy_on_write"] * 3  # the prompts are kept
    assert sends.steps["mapping"].tolist() == [True, False, False, False]
    assert sends.steps["states"].tolist() == [3, 0, 0, 0]
    assert sends.steps["rows"].tolist() == [3, 1, 1, 1]
    assert sends.steps["copies"].tolist() == [1, 1, 1, 1]  # mapping, states and rows go in one
    # Words of 32 bits: two tables' rows; of who joins the length, and seven numbers of two words each.
    row = 2 * engine.kv_manager.max_blocks_per_seq
    max_batch = len(engine.decode_step.slots.slot_mapping)
    words = [2 * max_batch + 3 * (1 + 2 * 7) + 3 * row, row, row, row]
    # With each word its place, of 8 bytes; words travel two by two.
    assert sends.steps["bytes"].tolist() == [8 * (n + -(-n // 2)) for n in words]


def test_a_row_that_is_copied_after_the_join_is_told_apart():
    engine = prefilled(THIS, [(1, 2, 3, 4, 5)])
    watch.record_sends(engine, 1)
    (session,) = engine.scheduler.running.values()
    fork = session.fork()  # somebody else holds the last block now
    sends = watch.record_sends(engine, 1)
    assert sends.requests[["took", "sent"]].values.tolist() == [["copy_on_write", "copy_on_write"]]
    fork.release()
    engine.check_integrity()


def test_an_engine_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="'cached'"):
        watch.record_sends(prefilled(BELOW), 1)
