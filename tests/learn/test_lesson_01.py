"""Lesson 01: figures show what the cache did, what is broken is broken."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.kvcache import CachedBlockTables
from labkit.learn import lesson_01

CACHED = LADDER["01"].options


# --- what the lesson breaks, and times -----------------------------------------------------------------


def test_half_a_signature_misses_copy_on_write_and_nothing_else():
    def tokens(tables_class, prompt):
        engine = make_engine(options=CACHED)
        engine.decode_step.block_tables = tables_class(engine.kv_manager, max_batch_size=8)
        (done,) = engine.generate([prompt], SamplingParams(20, stop_on_eos=False))
        return done.token_ids

    for prompt, agrees in (((1, 2, 3, 4), True), ((1, 2, 3, 4, 5), False)):  # a full last block, and not
        right, wrong = (tokens(t, prompt) for t in (CachedBlockTables, lesson_01.NumberOnlyBlockTables))
        assert (right == wrong) is agrees


def test_only_rolling_back_keeps_a_regrown_row_right():
    blocks, row = lesson_01.cut_and_regrow(forget_rows=False)
    assert (blocks, row) == ([0, 3, 2], [0, 1, 2])
    assert lesson_01.cut_and_regrow(forget_rows=True) == ([0, 3, 2], [0, 3, 2])


@pytest.mark.parametrize(("num_buffers", "arrived"), [(1, 1), (2, 2), (6, 6)])
def test_a_late_copy_brings_the_rows_of_whoever_wrote_last(num_buffers, arrived):
    assert lesson_01.rows_arrived(6, num_buffers) == arrived


def test_kept_rows_are_quicker_than_rows_made_anew():
    rebuilt, kept, anew = lesson_01.table_times("cpu", batch_size=16, repeats=5)
    assert 0 < kept < anew and rebuilt > 0


# --- rows, watched -------------------------------------------------------------------------------------


# --- figures -------------------------------------------------------------------------------------------
