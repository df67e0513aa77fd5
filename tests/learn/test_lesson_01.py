"""Lesson 01: figures show what the cache did, what is broken is broken."""

import matplotlib.pyplot as plt
import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams, show
from labkit.kvcache import CachedBlockTables
from labkit.learn import lesson_01

CACHED = LADDER["01"].options


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


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


def sample(rung, gaps_us, **changes):
    return {
        "rung": rung,
        "decode_steps": len(gaps_us[0]),
        "new_tokens": [len(gaps) + 1 for gaps in gaps_us],
        "itl_us": [[1, list(gaps)] for gaps in gaps_us],
        **changes,
    }


def test_step_times_are_medians_over_requests_and_runs():
    one = sample("01", [[1000, 2000], [1000, 2000], [7000, 2000]])
    two = sample("01", [[3000, 4000], [3000, 4000]])
    record = {"samples": [one, sample("00", [[9000, 9000]]), two]}
    assert show.step_times(record, "01") == [2.0, 3.0]


def test_step_times_of_requests_that_came_and_went_are_refused():
    record = {"samples": [sample("01", [[1000, 2000]], decode_steps=3)]}
    with pytest.raises(ValueError, match="not every request was decoded in all 3 steps"):
        show.step_times(record, "01")


def test_the_figure_of_step_times_marks_the_steps_after_boundaries():
    axes = show.draw_step_times({"00": [1.0] * 10, "01": [2.0] * 9}, mark_every=4).axes[0]
    first, second, marks = axes.lines
    assert (len(first.get_xdata()), len(second.get_xdata())) == (10, 9)
    assert list(marks.get_xdata()) == [5, 9]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["00", "01"]
