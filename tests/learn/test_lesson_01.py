"""Lesson 01: figures show what the cache did, what is broken is broken."""

import matplotlib.pyplot as plt
import pytest
from helpers import make_engine, make_manager

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig, bench, show
from labkit.kvcache import CachedBlockTables
from labkit.learn import lesson_01
from labkit.show.rows import REASONS, reason_of

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


@pytest.fixture
def watched(tiny):
    """Two requests that share a cached prompt, one whose prompt fills its block, and one that waits."""
    engine = InferenceEngine(
        tiny,
        CACHED,
        device="cpu",
        cache=CacheConfig(block_size=4, max_blocks_per_layer=40),
        scheduler=SchedulerConfig(max_batch_size=3),
    )
    engine.generate([[5] * 5], SamplingParams(1))
    for prompt, num_tokens in (([5] * 5, 12), ([5] * 5, 12), ([6] * 4, 7), ([7] * 3, 12)):
        engine.add_request(prompt, SamplingParams(num_tokens, stop_on_eos=False))
    return engine


def reasons_by_request(rows, layer_idx=0):
    of_layer = rows[rows["layer"] == layer_idx]
    return {request: group["reason"].tolist() for request, group in of_layer.groupby("request")}


def test_rows_change_at_first_at_boundaries_and_once_by_copy_on_write(watched):
    rows = show.record_rows(watched, 14)
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


def test_the_watch_counts_the_rows_that_are_really_made(watched, monkeypatch):
    """A row made anew is an index tensor, as a cost card counts them; a step makes three others."""
    counts, step = [], watched.step

    def counted_step():
        with bench.cost_cards.OperatorCounter() as counter:
            step()
        counts.append(counter.index_tensors)

    monkeypatch.setattr(watched, "step", counted_step)
    rows = show.record_rows(watched, 14)
    made_anew = rows[rows["reason"] != "kept"].groupby("step").size()
    for number in rows["step"].unique():
        assert counts[number - 1] == 3 + made_anew.get(number, 0)


def test_watching_changes_no_token_and_leaves_nothing_behind():
    made = []
    for watch in (True, False):
        engine = make_engine(options=CACHED)
        for length in (5, 6):
            engine.add_request([9] * length, SamplingParams(30, stop_on_eos=False))
        if watch:
            show.record_rows(engine, 12)
            assert "fill" not in vars(engine.decode_step.block_tables)
        else:
            for _ in range(12):
                engine.step()
        made.append([request.output_token_ids for request in engine.scheduler.running])
    assert made[0] == made[1] and len(made[0][0]) == 12


def test_a_row_full_to_its_last_entry_is_watched_and_left_as_it_was():
    engine = make_engine(options=CACHED)  # 64 positions, 16 blocks of 4
    engine.add_request([1] * 58, SamplingParams(6, stop_on_eos=False))
    rows = show.record_rows(engine, 6)
    assert reasons_by_request(rows)[0] == ["first", "copy_on_write", "kept", "boundary", "kept"]
    assert rows["blocks"].max() == 16


def test_rows_forgotten_with_the_same_blocks_are_told_apart(monkeypatch):
    engine = make_engine(options=CACHED, prefix_cache=False)
    engine.add_request([1, 2, 3], SamplingParams(9, stop_on_eos=False))
    engine.step()
    steps, step = iter(range(100)), engine.step

    def rolled_back_before_the_second():
        if next(steps) == 1:
            engine.scheduler.running[0].session.roll_back()
        step()

    monkeypatch.setattr(engine, "step", rolled_back_before_the_second)
    rows = show.record_rows(engine, 4)
    assert reasons_by_request(rows)[0] == ["first", "forgotten", "boundary", "kept"]


def test_a_stale_row_is_called_so():
    session = lesson_01.session_on(make_manager(num_layers=1, max_blocks_per_layer=10), [3, 7, 5])
    watch = show.rows.RowWatch()
    assert watch.ask(session, 0, 0)[1] == "first"
    session.block_ids_per_layer[0][1] = 9
    assert watch.ask(session, 0, 0)[1] == "stale"


@pytest.mark.parametrize(
    ("kept", "before", "after", "reason"),
    [
        (True, [1, 2], [1, 2], "kept"),
        (True, [1, 2], [3, 2], "stale"),
        (False, [1, 2], [1, 2], "forgotten"),
        (False, [1, 2], [1, 2, 3], "boundary"),
        (False, [], [3], "boundary"),
        (False, [1, 2], [1, 3], "copy_on_write"),
        (False, [1, 2], [3, 4], "changed"),
        (False, [1, 2, 3], [1], "changed"),
    ],
)
def test_reasons(kept, before, after, reason):
    assert reason_of(kept, before, after) == reason
    assert reason in REASONS


def test_an_engine_that_keeps_no_rows_is_refused():
    with pytest.raises(ValueError, match="block_tables='rebuilt' keeps no rows"):
        show.record_rows(make_engine(options=LADDER["00"].options), 1)


# --- figures -------------------------------------------------------------------------------------------


def test_the_figure_of_rows_has_a_cell_a_step_and_names_what_occurs(watched):
    rows = show.record_rows(watched, 14)
    figure = show.draw_rows(rows, layer_idx=2)
    axes = figure.axes[0]
    assert len(axes.patches) == len(rows[rows["layer"] == 2]) == len(axes.texts)
    assert [text.get_text() for text in axes.texts][:3] == ["5", "5", "4"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"request {i}" for i in range(1, 5)]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [REASONS[r][1] for r in ("kept", "first", "boundary", "copy_on_write")]
    assert "layer 2" in axes.get_title(loc="left")


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
