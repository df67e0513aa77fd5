"""The ladder: what each rung adds, its runs, its share of the limit."""

from itertools import pairwise

import pytest
from figures import lines, texts, tick_labels, title
from matplotlib.colors import same_color

from labkit import results, show
from labkit.ladder import LADDER
from labkit.show.ladder import rung_label
from labkit.show.style import BLUE, GREY, GREY_INK, RED, WIDE, is_wide

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
    assert scale == "decode tokens per second, each dot a run"
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
    recorded = results.load("ladder_036_h100")
    rates = recorded.rates
    figure = show.draw_ladder(rates)
    steps = [recorded.comparison(*pair) for pair in pairwise(rates)]
    assert [t for t in texts(figure) if t[0] == "×"] == [f"×{step.speedup:.2f}" for step in steps]
    for box, step in zip(figure.axes[0].patches[3::2], steps, strict=True):
        low, high = step.interval
        assert same_color(box.get_facecolor()[:3], BLUE if low > 1 else RED if high < 1 else GREY)


def test_ladder_names_the_rungs():
    assert rung_label("00").replace("\n", " ") == f"00 {LADDER['00'].title}"
    assert rung_label("Hugging Face") == "Hugging Face"
