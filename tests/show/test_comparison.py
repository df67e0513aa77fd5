"""Comparisons: dots, intervals, verdicts, colours."""

import numpy as np
import pytest
from figures import ROUND, all_texts, comparison, lines, texts, tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.results import Comparison
from labkit.show.style import BLUE, GREY, GREY_INK, RED


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
