"""Rows of the block table: which are kept, which are made anew, and why."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams, watch


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
