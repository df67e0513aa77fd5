"""Rows of the block table: which are kept, which are made anew, and why."""

import pytest
from helpers import make_engine, tokens_alone

from labkit import LADDER, SamplingParams, watch
from labkit.watch.rows import reason_of


@pytest.fixture
def watched(tiny):
    """Two requests that share a cached prompt, one whose prompt fills its block, and one that waits."""
    engine = make_engine(tiny, options=LADDER["01"].options, max_blocks_per_layer=40, max_batch_size=3)
    engine.generate([[5] * 5], SamplingParams(1))
    for prompt, num_tokens in (([5] * 5, 12), ([5] * 5, 12), ([6] * 4, 7), ([7] * 3, 12)):
        engine.add_request(prompt, SamplingParams(num_tokens, stop_on_eos=False))
    return engine


def reasons_by_request(rows, layer_idx=0):
    of_layer = rows[rows["layer"] == layer_idx]
    return {request: group["reason"].tolist() for request, group in of_layer.groupby("request")}


def test_rows_change_at_first_at_boundaries_and_once_by_copy_on_write(watched):
    rows = watch.record_rows(watched, 14)
    kept = ["kept"] * 3
    of_sharers = ["first", "copy_on_write", *kept[:2], "boundary", *kept, "boundary", *kept[:2]]
    assert reasons_by_request(rows)[1] == reasons_by_request(rows)[2] == of_sharers
    assert reasons_by_request(rows)[3] == ["first", "boundary", *kept, "boundary"]
    assert reasons_by_request(rows)[4][:3] == ["first", "copy_on_write", "boundary"]
    for layer_idx in range(6):
        assert reasons_by_request(rows, layer_idx) == reasons_by_request(rows)
    of_first = rows[(rows["request"] == 1) & (rows["layer"] == 0)]
    assert of_first["tokens"].tolist() == list(range(5, 16))
    assert of_first["blocks"].tolist() == [2] * 4 + [3] * 4 + [4] * 3
    assert of_first["step"].tolist()[0] == 2  # the first step only admitted
    watched.check_integrity()


@pytest.mark.parametrize(("rung", "block_tables"), [("00", "rebuilt"), ("06", "resident")])
def test_an_engine_that_keeps_no_rows_is_refused(rung, block_tables):
    with pytest.raises(ValueError, match=f"block_tables='{block_tables}' keeps no rows"):
        watch.record_rows(make_engine(options=LADDER[rung].options), 1)


@pytest.mark.parametrize(
    ("kept", "before", "after", "reason"),
    [
        (True, [1, 2], [1, 2], "kept"),
        (True, [1, 2], [1, 3], "stale"),
        (False, [1, 2], [1, 2], "forgotten"),
        (False, [1, 2], [1, 2, 3], "boundary"),
        (False, [1, 2], [1, 3], "copy_on_write"),
        (False, [1, 2], [1, 4, 3], "changed"),
        (False, [1, 2], [3, 2], "changed"),
        (False, [1, 2], [1], "changed"),
    ],
)
def test_a_row_is_made_anew_for_a_reason(kept, before, after, reason):
    assert reason_of(kept, before, after) == reason


def test_watched_rows_are_as_if_nobody_had_watched():
    engine = make_engine(options=LADDER["01"].options, prefix_cache=False)
    engine.add_request((1, 2, 3), SamplingParams(8))
    watch.record_rows(engine, 5)  # in the last of which the row is kept
    ((request, session),) = engine.scheduler.running.items()
    assert tuple(request.output_token_ids) == tokens_alone((1, 2, 3), SamplingParams(8))[:5]
    assert "fill" not in vars(engine.decode_step.block_tables)
    row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
    assert row.tolist() == session.block_ids_per_layer[0] + [0] * (len(row) - 2)
