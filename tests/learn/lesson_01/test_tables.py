"""Lesson 01's tables: rows are counted and timed, and half a signature misses what it must."""

from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.kvcache import CachedBlockTables
from labkit.learn.lesson_01.tables import NumberOnlyBlockTables, rows_made, table_times

CACHED = LADDER["01"].options


def test_a_part_that_raises_is_not_counted():
    assert rows_made(make_engine(options=CACHED)) == (
        "rows made: not counted, because the engine raised AttributeError: "
        "'CachedBlockTables' object has no attribute 'num_made'"
    )


def test_half_a_signature_misses_copy_on_write_and_nothing_else():
    def tokens(tables_class, prompt):
        engine = make_engine(options=CACHED)
        engine.decode_step.block_tables = tables_class(engine.kv_manager, max_batch_size=8)
        (done,) = engine.generate([prompt], SamplingParams(20, stop_on_eos=False))
        return done.token_ids

    for prompt, agrees in (((1, 2, 3, 4), True), ((1, 2, 3, 4, 5), False)):  # a full last block, and not
        right, wrong = (tokens(t, prompt) for t in (CachedBlockTables, NumberOnlyBlockTables))
        assert (right == wrong) is agrees


def test_kept_rows_are_quicker_than_rows_made_anew():
    rebuilt, kept, anew = table_times("cpu", batch_size=16, repeats=5)
    assert 0 < kept < anew and rebuilt > 0
