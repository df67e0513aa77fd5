"""Figures of measurements say what was measured. The numbers here are made up and no picture is kept."""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from matplotlib.text import Text

from labkit import bench, show
from labkit.bench import Comparison, HostTime
from labkit.ladder import LADDER
from labkit.show.host_time import spread
from labkit.show.idle import StepOnDevice
from labkit.show.ladder import rung_label
from labkit.show.step_kernels import KernelBox
from labkit.show.style import BLUE, DPI, GREEN, GREY, GREY_INK, ORANGE, RED, WIDE, WIDTH, is_wide
from labkit.watch.flights import Flight, Flights
from labkit.watch.sends import OF_REQUESTS, OF_STEPS, Sends

ROUND = (1.0, 1.01, 0.99, 1.0)  # runs about 1 s


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def comparison(speedup, path=None, spread=1.0):
    """Four runs of 8 s before; after it, runs that are `speedup` times as fast."""
    runs = [8 * (1 + spread * (run - 1)) for run in ROUND]
    after = tuple(run / speedup for run in runs)
    return Comparison("old", "new", tuple(runs), after, {"generic": 9}, {"generic": 9}, path)


def host_times(fixed_us, request_us, sizes=(1, 8, 32, 64, 128, 256)):
    """Times of a rung whose steps take exactly so much, and so much more a request."""
    return [
        HostTime(size, 12, (1e-6 * (fixed_us + request_us * size),) * 3, (0.0,) * 3, (0.0,) * 3)
        for size in sizes
    ]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def title(figure):
    return figure.axes[0].get_title(loc="left")


def tick_labels(axis):
    return [label.get_text().replace("\n", " ") for label in axis.get_ticklabels()]


def all_texts(figure):
    """Every text that is seen: the title and the labels of ticks in view among them."""
    axes = figure.axes[0]
    unseen = set()
    for i, axis in enumerate((axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        unseen |= {t for t in axis.get_ticklabels() if not low <= t.get_position()[i] <= high}
    return [t for t in figure.findobj(Text) if t.get_text() and t.get_visible() and t not in unseen]


def lines(figure, marker):
    return [line for line in figure.axes[0].lines if line.get_marker() == marker]


# --- comparisons ---------------------------------------------------------------------------------------


def test_comparison_has_a_dot_a_bar_and_a_verdict_for_each_row():
    rows = {"here": comparison(2.0), "recorded": comparison(1.0), "elsewhere": comparison(0.5)}
    figure = show.draw_comparison(rows)
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines(figure, "o")]
    assert dots == [(pytest.approx(2.0), 0), (pytest.approx(1.0), 1), (pytest.approx(0.5), 2)]
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 8]
    assert [tuple(bar.get_xdata()) for bar in bars] == [tuple(c.interval) for c in rows.values()]
    assert texts(figure)[::2] == ["faster", "cannot tell", "slower"]
    assert texts(figure)[1] == f"×2.000 {rows['here'].interval}"
    assert tick_labels(figure.axes[0].yaxis) == ["here", "recorded", "elsewhere"]


def test_comparison_is_coloured_by_its_verdict():
    rows = {"a": comparison(2.0), "b": comparison(1.0), "c": comparison(0.5)}
    figure = show.draw_comparison(rows)
    dots = lines(figure, "o")
    assert all(same_color(d.get_color(), c) for d, c in zip(dots, (BLUE, GREY, RED), strict=True))
    verdicts = figure.axes[0].texts[::2]
    assert [text.get_color() for text in verdicts] == [BLUE, GREY_INK, RED]


def test_a_single_round_is_grey_and_says_that_it_is_too_few():
    once = Comparison("old", "new", (5.0, 5.2), (1.0, 0.95), {}, {})
    figure = show.draw_comparison({"here": once})
    assert once.interval.low > 1 and texts(figure)[0] == "too few rounds for a verdict (2 needed)"
    (dot,), (bar,) = lines(figure, "o"), [line for line in figure.axes[0].lines if line.get_linewidth() == 8]
    assert same_color(dot.get_color(), GREY) and same_color(bar.get_color(), GREY)
    figure = show.draw_before_after(once)
    assert title(figure) == f"×{once.speedup:.3f} {once.interval}: too few rounds for a verdict (2 needed)"
    assert all(same_color(box.get_facecolor()[:3], GREY) for box in figure.axes[0].patches)


def test_comparison_says_which_side_is_faster():
    figure = show.draw_comparison({"here": comparison(2.0)})
    axes = figure.axes[0]
    (no_difference,) = [line for line in axes.lines if list(line.get_xdata()) == [1, 1]]
    assert list(no_difference.get_ydata()) == [0, 1]  # of the axes' height
    assert axes.get_xlim()[0] < 1 < axes.get_xlim()[1]
    assert axes.get_xlabel() == "speed-up: time before / time after, medians (bar: 99 % interval)"
    assert title(figure) == "Right of 1: faster. Left of 1: slower. A bar across 1 cannot tell"


def test_published_ratios_are_hollow_diamonds_with_the_series_drift():
    figure = show.draw_comparison({"here": comparison(1.5)}, {"write-up 036": 1.025}, drift=0.02)
    (diamond,) = lines(figure, "D")
    assert (diamond.get_xdata()[0], diamond.get_ydata()[0]) == (1.025, 1)
    assert diamond.get_markerfacecolor() == "white"
    assert texts(figure)[2:] == ["published by the write-up", "×1.025; its series drifts by 2.0 %"]
    drift = [line for line in figure.axes[0].lines if line.get_linewidth() == 8][1]
    np.testing.assert_allclose(drift.get_xdata(), [1.025 / 1.02, 1.025 * 1.02])
    assert tick_labels(figure.axes[0].yaxis) == ["here", "write-up 036"]


def test_without_drift_a_published_ratio_stands_alone():
    figure = show.draw_comparison({}, {"write-up 038": 2.313})
    assert texts(figure) == ["published by the write-up", "×2.313"]
    assert not [line for line in figure.axes[0].lines if line.get_linewidth() == 8]


def test_a_path_that_never_ran_takes_the_verdicts_place():
    figure = show.draw_comparison({"here": comparison(2.0, path="full_batch")})
    assert texts(figure)[0] == "'full_batch' never ran"
    assert figure.axes[0].texts[0].get_color() == RED
    (dot,) = lines(figure, "o")
    assert same_color(dot.get_color(), GREY)


def test_before_and_after_in_seconds():
    figure = show.draw_before_after(comparison(2.0), "host time")
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [8.0, 4.0]
    shades = [bar.get_facecolor()[:3] for bar in axes.patches]
    assert all(same_color(shade, colour) for shade, colour in zip(shades, (GREY, BLUE), strict=True))
    before, after = lines(figure, "o")
    np.testing.assert_allclose(before.get_xdata(), [8.0, 8.08, 7.92, 8.0])
    np.testing.assert_allclose(after.get_xdata(), [4.0, 4.04, 3.96, 4.0])
    assert texts(figure) == ["8 s", "4 s"]
    assert axes.get_xlabel() == "host time, seconds a run (dot: a run; line: 99 % interval, drift taken out)"
    assert tick_labels(axes.yaxis) == ["old", "new"]
    assert title(figure) == f"×2.000 {comparison(2.0).interval}: faster"


def test_before_and_after_in_tokens_a_second():
    figure = show.draw_before_after(comparison(2.0), tokens=32_000)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [4000, 8000]
    assert texts(figure) == ["4,000 tokens/s", "8,000 tokens/s"]
    np.testing.assert_allclose(lines(figure, "o")[0].get_xdata(), 32_000 / (8 * np.array(ROUND)))
    assert figure.axes[0].get_xlabel().startswith("decoding, tokens a second")


@pytest.mark.parametrize("tokens", [None, 32_000])
def test_the_interval_on_after_crosses_befores_median_if_it_cannot_tell(tokens):
    for speedup, crosses in ((1.0, True), (2.0, False)):
        compared = comparison(speedup)
        figure = show.draw_before_after(compared, tokens=tokens)
        (interval,) = lines(figure, "|")
        seconds = 8 / np.array(compared.interval)
        np.testing.assert_allclose(interval.get_xdata(), tokens / seconds if tokens else seconds)
        (median,) = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
        low, high = sorted(interval.get_xdata())
        assert (low <= median.get_xdata()[0] <= high) == crosses


def test_before_and_after_of_a_path_that_never_ran_warns():
    figure = show.draw_before_after(comparison(2.0, path="identity_pos"))
    assert title(figure).endswith("'identity_pos' never ran")
    (written,) = [text for text in all_texts(figure) if text.get_text() == title(figure)]
    assert written.get_color() == RED


# --- the ladder ----------------------------------------------------------------------------------------

RATES = {"a": [990, 1010] * 2, "b": [2475, 2525] * 2, "c": [2000] * 4}


def boxes(figure):
    """(from, to) of each bar, rounded: for each rung a pale one and then what it gains or loses."""
    return [(round(b.get_x()), round(b.get_x() + b.get_width())) for b in figure.axes[0].patches]


def test_ladder_draws_what_each_rung_adds():
    figure = show.draw_ladder(RATES)
    pale_and_gain = [(0, 0), (0, 1000), (0, 1000), (1000, 2500), (0, 2000), (2000, 2500)]
    assert boxes(figure) == pale_and_gain
    gains = figure.axes[0].patches[1::2]
    assert all(same_color(b.get_facecolor()[:3], c) for b, c in zip(gains, (GREY, BLUE, RED), strict=True))
    assert texts(figure) == ["1,000 tokens/s", "×2.50", "2,500 tokens/s", "×0.80", "2,000 tokens/s"]
    assert title(figure) == "Rung a to c: ×2.0"
    scale, legend = figure.axes[0].get_xlabel().split("\n")
    assert scale == "decode tokens a second, each dot a run"
    assert legend == "blue: faster than the rung below; red: slower; grey: cannot tell"


def test_ladder_writes_the_factor_beyond_everything_that_is_drawn_in_its_row():
    figure = show.draw_ladder(RATES)
    factors = {text.get_text(): text.xy for text in figure.axes[0].texts if text.get_text()[0] == "×"}
    assert factors == {"×2.50": (2525, 1), "×0.80": (2500, 2)}


def test_ladder_writes_rates_and_shares_outside_the_axes():
    figure = show.draw_ladder(RATES, limit=3000)
    figure.canvas.draw()
    columns = [text for text in figure.axes[0].texts if text.get_text()[0] != "×"]
    assert len(columns) == 8
    assert all(text.get_window_extent().x0 > figure.axes[0].bbox.x1 for text in columns)


def test_ladder_shows_every_run():
    dots = lines(show.draw_ladder(RATES), "o")
    assert [list(d.get_xdata()) for d in dots] == list(RATES.values())
    assert [d.get_ydata()[0] for d in dots] == [0, 1, 2]


def test_ladder_says_how_much_of_the_limit_is_reached():
    figure = show.draw_ladder(RATES, limit=8000)
    (limit,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert list(limit.get_xdata()) == [8000, 8000]
    shares = [text for text in texts(figure) if text.endswith("%")]
    assert shares == ["12.5 %", "31.2 %", "25.0 %", "100.0 %"]
    assert "8,000 tokens/s" in texts(figure)
    assert title(figure) == "Rung a to c: ×2.0, which is 25.0 % of the limit"
    assert tick_labels(figure.axes[0].yaxis) == ["a", "b", "c", "the hardware's limit"]


def test_ladder_of_one_rung():
    assert title(show.draw_ladder({"00": [100.0]})) == "Decode throughput of rung 00"
    figure = show.draw_ladder({"00": [100.0]}, limit=1000)
    assert title(figure) == "Rung 00 reaches 10.0 % of the limit"
    assert texts(figure) == ["100 tokens/s", "10.0 %", "1,000 tokens/s", "100.0 %"]
    assert title(show.draw_ladder({"00": [100.0]}, title="mine")) == "mine"


def test_ladder_of_wide_range_is_logarithmic_and_says_so():
    axes = show.draw_ladder({"a": [100.0], "b": [300.0]}, limit=1000).axes[0]
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
    axes = show.draw_ladder({"a": [100.0], "b": [300.0]}, limit=50_000).axes[0]
    assert axes.get_xscale() == "log" and axes.get_xlabel().splitlines()[0].endswith("(logarithmic axis)")
    assert 0 < axes.get_xlim()[0] < 100
    assert is_wide([1, WIDE + 1]) and not is_wide([1, WIDE])


@pytest.mark.parametrize(
    ("runs", "factor", "box_colour", "text_colour"),
    [
        ([1200.0, 1210.0, 1190.0, 1200.0], "×1.20", BLUE, BLUE),
        ([800.0, 810.0, 790.0, 800.0], "×0.80", RED, RED),
        ([1000.0, 1010.0, 990.0, 1002.0], "×1.00", GREY, GREY_INK),
        ([900.0, 1300.0, 950.0, 1250.0], "×1.08", GREY, GREY_INK),  # the interval holds 1
        ([1200.0, 1200.0], "×1.20", GREY, GREY_INK),  # no rounds that fit the four runs below
        ([1200.0, 1210.0, 1190.0], "×1.20", GREY, GREY_INK),
    ],
)
def test_a_rung_is_coloured_by_the_verdict_on_it_and_the_rung_below(runs, factor, box_colour, text_colour):
    below = [1000.0, 1005.0, 995.0, 1000.0]
    figure = show.draw_ladder({"a": below, "b": runs})
    assert same_color(figure.axes[0].patches[3].get_facecolor()[:3], box_colour)
    (written,) = [text for text in figure.axes[0].texts if text.get_text().startswith("×")]
    assert (written.get_text(), written.get_color()) == (factor, text_colour)


def test_a_single_round_of_the_ladder_is_grey():
    figure = show.draw_ladder({"a": [1000.0, 1000.0], "b": [3000.0, 3000.0]})
    assert same_color(figure.axes[0].patches[3].get_facecolor()[:3], GREY)


def test_the_recorded_ladders_factors_and_colours_are_those_of_its_comparisons():
    recorded = bench.load_record("ladder_036_h100")
    rates = bench.ladder_rates(recorded)
    figure = show.draw_ladder(rates)
    steps = [bench.ladder_comparison(recorded, *pair) for pair in pairwise(rates)]
    assert [t for t in texts(figure) if t[0] == "×"] == [f"×{step.speedup:.2f}" for step in steps]
    for box, step in zip(figure.axes[0].patches[3::2], steps, strict=True):
        low, high = step.interval
        assert same_color(box.get_facecolor()[:3], BLUE if low > 1 else RED if high < 1 else GREY)


def test_ladder_names_the_rungs():
    assert rung_label("00").replace("\n", " ") == f"00 {LADDER['00'].title}"
    assert rung_label("Hugging Face") == "Hugging Face"


# --- host time -----------------------------------------------------------------------------------------


def test_host_time_draws_a_line_a_rung_over_the_batch_size():
    figure = show.draw_host_time({"00": host_times(1000, 250)[::-1], "01": host_times(1000, 20)})
    axes = figure.axes[0]
    assert [line.get_label() for line in axes.lines] == ["00", "01"]
    assert list(axes.lines[0].get_xdata()) == [1, 8, 32, 64, 128, 256]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [1.25, 3.0, 9.0, 17.0, 33.0, 65.0])
    assert axes.get_ylabel() == "host time of a step (milliseconds)"
    assert axes.get_xlabel() == "B: requests decoded together"
    assert axes.get_xscale() == "log" and tick_labels(axes.xaxis) == ["1", "8", "32", "64", "128", "256"]


def test_host_time_says_what_a_request_adds():
    figure = show.draw_host_time({"00": host_times(1000, 250), "08": host_times(100, 1.75)})
    assert texts(figure) == ["00: 250.0 µs a request", "08: 1.8 µs a request"]
    ends = [text.xy for text in figure.axes[0].texts]
    assert ends == [(256, pytest.approx(65.0)), (256, pytest.approx(0.548))]


def test_slope_is_that_of_the_larger_batches():
    bent = host_times(1000, 0, sizes=(1, 8, 32)) + host_times(0, 30, sizes=(64, 128, 256))
    assert bench.slope_us(bent[::-1]) == pytest.approx(30)
    assert bench.slope_us(host_times(10, 5, sizes=(1, 8))) == pytest.approx(5)
    assert bench.slope_us(host_times(10, 5, sizes=(8,))) is None
    assert texts(show.draw_host_time({"00": host_times(10, 5, sizes=(8,))})) == ["00"]


def test_host_time_is_in_microseconds_where_that_reads_better():
    axes = show.draw_host_time({"10": host_times(100, 1)}).axes[0]
    assert axes.get_ylabel() == "host time of a step (microseconds)"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(356)
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    assert show.draw_host_time({"00": host_times(100, 100)}).axes[0].get_yscale() == "log"


def test_labels_that_would_overlap_move_apart_and_no_further():
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread([0.72, 0.7, 0.2, 0.71], 0.1) == pytest.approx([0.81, 0.61, 0.2, 0.71])
    assert spread([0.1, 0.99, 1.0], 0.1) == pytest.approx([0.1, 0.9, 1.0])  # none above the axes


# --- engines side by side ------------------------------------------------------------------------------


def test_engines_are_ordered_by_their_medians_beside_the_limit():
    rates = {"vllm": [300.0, 200.0, 220.0], "labkit 10": [100.0, 110.0, 290.0]}
    figure = show.draw_peers(rates, limit=400.0, notes={"vllm": "×2.00"})
    axes = figure.axes[0]
    assert tick_labels(axes.yaxis) == ["labkit 10", "vllm", "the hardware's limit"]
    assert texts(figure) == ["110", "", "220", "×2.00", "400", ""]
    assert [list(line.get_xdata()) for line in lines(figure, "o")] == [rates["labkit 10"], rates["vllm"]]
    ranges = [line for line in axes.lines if line.get_linewidth() == 6]
    assert [list(line.get_xdata()) for line in ranges] == [[100, 290], [200, 300]]
    assert all(same_color(r.get_color(), c) for r, c in zip(ranges, (BLUE, ORANGE), strict=True))


# --- what a step is made of ----------------------------------------------------------------------------


def test_the_parts_of_a_step_stand_above_the_share_that_its_bytes_explain():
    measured, least = {"weights": 30.0, "attention": 50.0, "host": 20.0}, {"weights": 24.0, "attention": 16.0}
    figure = show.draw_step_parts({"B = 1": (measured, least), "B = 8": (least, {"weights": 10.0})})
    assert texts(figure) == ["  100 µs", "  40 µs, 40 % of it", "  40 µs", "  10 µs, 25 % of it"]
    assert tick_labels(figure.axes[0].yaxis)[:2] == ["B = 1, measured", "B = 1, at the limit"]
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert bars == [(0, 30), (30, 50), (80, 20), (0, 24), (24, 16), (0, 24), (24, 16), (0, 10)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["weights", "attention", "host"]


def test_a_layers_kernels_stand_where_those_of_the_row_above_do():
    rows = {
        "apart": [KernelBox("norm", 1, 10), KernelBox("linear", 1, 30), KernelBox("attention", 1, 20)],
        "fused": [KernelBox("norm_linear", 2, 30), KernelBox("attention", 1, 20)],
    }
    axes = show.draw_layer_kernels(rows).axes[0]
    assert [box.get_x() for box in axes.patches] == pytest.approx([0.04, 1.04, 2.04, 0.04, 2.04])
    assert tick_labels(axes.yaxis) == ["apart 3 kernels", "fused 2 kernels"]


def test_an_idle_gpus_steps_say_how_long_they_are_and_how_much_of_them_it_works():
    figure = show.draw_idle([StepOnDevice("09", 64, 800.0, 600.0), StepOnDevice("10", 64, 1000.0, 980.0)])
    assert texts(figure) == ["idle 25.0 %", "of 800 µs", "idle 2.0 %", "of 1,000 µs"]
    works = [bar for bar in figure.axes[0].patches if same_color(bar.get_facecolor()[:3], GREEN)]
    assert [bar.get_width() for bar in works] == pytest.approx([75, 98])


def test_captures_are_counted_by_their_reasons():
    figure = show.draw_captures((1, 2, 2, 2), (1, 1, 2, 2), ("size", "size", "table", ""))
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    new_size, grown = "this batch size is new (2)", "its graph was dropped: the table grew (1)"
    assert legend == [new_size, grown, "the table grows"]


def test_means_of_runs_are_means():
    figure = show.draw_runs({"a": ((100, 100, 190), (200, 200, 500))})
    assert texts(figure) == ["mean 130", "mean 300"]


def test_sent_numbers_are_written_in_thousands_from_a_thousand_on():
    steps = [(1, True, 1, 1, 3, 1000), (2, False, 0, 0, 0, 0), (3, False, 0, 1, 1, 999)]
    requests = [(step, 0, 0, 4 + step, "in_place", "nothing") for step in (1, 2, 3)]
    sends = Sends(pd.DataFrame(requests, columns=OF_REQUESTS), pd.DataFrame(steps, columns=OF_STEPS))
    written = texts(show.draw_sends(sends))
    assert {"1.0k", "0", "999"} <= set(written) and "1000" not in written


def test_attention_times_name_the_kernels():
    sample = {"batch_size": 8, "num_bytes": 100, "copy_bytes_per_second": 1e8}
    samples = [
        {**sample, "kernel": kernel, "context_len": length, "us": us}
        for kernel, us in (("one_program", 4.0), ("split", 2.0))
        for length in (100, 900)
    ]
    figure = show.draw_attention_times(samples)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == [4.0, 2.0]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["B = 8, one program", "B = 8, split"]


def test_a_request_without_a_token_is_no_end_unless_the_end_was_asked_for():
    flight = Flight(1, 1, [0], read_in=2, token_ids=[None], handed_to={0})
    assert texts(show.draw_flights(Flights([flight], calls=2))) == []


# --- block tables --------------------------------------------------------------------------------------


def step_sample(*gaps_us, steps=2):
    return {
        "rung": "01",
        "decode_steps": steps,
        "new_tokens": [len(gaps) + 1 for gaps in gaps_us],
        "itl_us": [[1, list(gaps)] for gaps in gaps_us],
    }


def test_step_times_are_medians_over_runs():
    runs = [step_sample([1000, 2000]), step_sample([3000, 2000]), step_sample([9000, 2000])]
    assert show.step_times({"samples": runs}, "01") == [3.0, 2.0]


def test_step_times_need_every_request_in_every_step():
    record = {"samples": [step_sample([1000, 2000], [1000])]}
    with pytest.raises(ValueError, match="not every request was decoded in all 2 steps"):
        show.step_times(record, "01")


# --- all of them ---------------------------------------------------------------------------------------


def twelve_rungs():
    names = [f"{i:02d} A rung with a title as long as they get" for i in range(12)]
    return {name: [1000 * 1.5**i, 1010 * 1.5**i] * 2 for i, name in enumerate(names)}


FIGURES = {
    "comparison": lambda: show.draw_comparison(
        {f"recorded: a device with a long name, {i}": comparison(1 + i / 10) for i in range(11)},
        {"write-up 064, throughput": 1.026},
        0.0265,
    ),
    "before_after": lambda: show.draw_before_after(comparison(1.1), tokens=10_000_000),
    "one_round": lambda: show.draw_comparison(
        {"a device with a long name": Comparison("old", "new", (5.0, 5.2), (1.0, 0.95), {}, {})}
    ),
    "ladder": lambda: show.draw_ladder(twelve_rungs(), 480_000, "Twelve rungs"),
    "host_time": lambda: show.draw_host_time({f"{i:02d}": host_times(900, 1 + i / 9) for i in range(12)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_or_written_over(name):
    figure = FIGURES[name]()
    assert (figure.get_figwidth(), figure.dpi) == (WIDTH, DPI)
    figure.canvas.draw()
    # Of an annotation only the text, not its line.
    areas = [(text.get_text(), Text.get_window_extent(text)) for text in all_texts(figure)]
    width, height = figure.canvas.get_width_height()
    for text, area in areas:
        inside = min(area.x0, area.y0) > -1 and area.x1 < width + 1 and area.y1 < height + 1
        assert inside, f"{text!r} leaves the picture"
    for (text, area), (other_text, other) in combinations(areas, 2):
        # Lines of text may touch: what a font keeps free above and below belongs to its area.
        assert not area.padded(0, -2).overlaps(other), f"{text!r} is written over {other_text!r}"
