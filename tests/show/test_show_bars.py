"""Figures of bars and lines: the values that are plotted, and the colour of a verdict."""

import pytest
from figures import comparison, lines, texts
from matplotlib.colors import same_color

from labkit import results, show
from labkit.learn.lesson_00.pieces import waste_of
from labkit.results import Comparison
from labkit.show.colours import BLUE, GREY, ORANGE, RED
from labkit.show.style import is_wide


def coloured(artists, *colours):
    faces = [getattr(a, "get_facecolor", getattr(a, "get_color", None))() for a in artists]
    return all(
        same_color(f[:3] if isinstance(f, tuple) else f, c) for f, c in zip(faces, colours, strict=True)
    )


def widths(axes):
    return [bar.get_width() for bar in axes.patches]


def test_a_comparison_is_a_dot_on_its_interval_in_the_colour_of_its_verdict():
    rows = {
        "a": comparison(2.0),
        "b": comparison(1.0),
        "c": comparison(0.5),
        "d": comparison(2.0, path="full_batch"),
    }
    figure = show.draw_comparison(rows)
    assert [dot.get_xdata()[0] for dot in lines(figure, "o")] == pytest.approx([2.0, 1.0, 0.5, 2.0])
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 8]
    assert [tuple(bar.get_xdata()) for bar in bars] == [tuple(c.interval) for c in rows.values()]
    assert coloured(lines(figure, "o"), BLUE, GREY, RED, GREY)  # of a path that never ran nothing is said
    assert show.draw_comparison({"a": comparison(0.1), "b": comparison(3.0)}).axes[0].get_xscale() == "log"


RATES = {"a": [990, 1010] * 2, "b": [2475, 2525] * 2, "c": [2000] * 4}


def test_a_ladder_draws_what_each_rung_adds_and_every_run():
    figure = show.draw_ladder(RATES, limit=8000)
    boxes = [(round(b.get_x()), round(b.get_x() + b.get_width())) for b in figure.axes[0].patches]
    assert boxes == [(0, 0), (0, 1000), (0, 1000), (1000, 2500), (0, 2000), (2000, 2500)]
    assert coloured(figure.axes[0].patches[1::2], GREY, BLUE, RED)
    assert [list(dots.get_xdata()) for dots in lines(figure, "o")] == list(RATES.values())
    assert [t for t in texts(figure) if t[-1] == "%"] == ["12.5 %", "31.2 %", "25.0 %", "100.0 %"]
    assert [t for t in texts(figure) if t[0] == "×"] == ["×2.50", "×0.80"]
    assert is_wide([1, 21]) and not is_wide([1, 20])


@pytest.mark.parametrize(
    ("runs", "colour"),
    [
        ([1200.0, 1210.0, 1190.0, 1200.0], BLUE),
        ([1000.0, 1010.0, 990.0, 1002.0], GREY),
        ([900.0, 1300.0, 950.0, 1250.0], GREY),  # the interval holds 1
        ([1200.0, 1200.0], GREY),  # no rounds that fit the four runs below
    ],
)
def test_a_rung_is_coloured_by_the_verdict_on_it_and_the_rung_below(runs, colour):
    figure = show.draw_ladder({"a": [1000.0, 1005.0, 995.0, 1000.0], "b": runs})
    assert coloured([figure.axes[0].patches[3]], colour)


def test_measured_engines_and_a_staircase_are_bars_of_medians():
    slow, fast = (4e-3, 4.1e-3) * 4, (2e-3, 2.05e-3) * 4
    runs = {"below": slow, "package": fast}
    figure = show.draw_measured(runs, {"package": results.Comparison("", "", slow, fast, {}, {})}, 64)
    assert widths(figure.axes[0]) == pytest.approx([4050, 2025])
    assert coloured(figure.axes[0].patches, GREY, BLUE)
    (axes,) = show.draw_staircase({"00": slow, "10": fast}, {"10": slow}, 64).axes
    assert widths(axes) == pytest.approx([4050, 2025, 4050])
    assert coloured(axes.patches, GREY, BLUE, ORANGE)


def test_a_finale_is_two_bars_for_each_wait_with_the_readers_parts_below():
    compared = results.Comparison("rung 00", "yours", (4e-3, 4.1e-3) * 4, (2e-3, 2.05e-3) * 4, {}, {})
    figure = show.draw_finale({"First token": compared}, ["sampler (12)", "prefixes (14)"])
    (axes,) = figure.axes
    assert widths(axes) == pytest.approx([4.05, 2.025]) and coloured(axes.patches, GREY, ORANGE)
    assert axes.get_title(loc="left") == "First token: ×2.00, faster"
    assert axes.get_xlabel().endswith("In yours, your own: sampler (12), prefixes (14)")


def test_parts_of_a_step_add_up():
    before, after = {"block tables": 2.0, "append": 18.0, "the rest": 3.0}, {"append": 10.0, "the rest": 3.0}
    (axes,) = show.draw_host_shares({"B = 8": (before, after)}, ("04", "05")).axes
    assert sum(widths(axes)[:3]) == pytest.approx(100) and sum(widths(axes)[3:]) == pytest.approx(
        100 * 13 / 23
    )


def test_padding_is_the_space_between_the_lines():
    rows, share = show.draw_buckets({"some": [2, 4], "one": [4]}, 4).axes
    assert [list(line.get_ydata()) for line in rows.lines] == [[2, 2, 4, 4], [4] * 4, [1, 2, 3, 4]]
    assert [list(line.get_ydata()) for line in share.lines] == [[50, 0, 25, 0], [75, 50, 25, 0]]


def test_large_blocks_waste_slots_and_small_ones_make_rows_long():
    sizes = [waste_of([100, 30], 2**i, 1024) for i in range(4, 9)]
    left, right = show.draw_block_sizes(sizes, chosen=64).axes
    assert left.lines[0].get_ydata().tolist() == pytest.approx([100 * size.share for size in sizes])
    assert right.lines[0].get_ydata().tolist() == [64, 32, 16, 8, 4]


def test_a_sort_and_a_search_keep_the_same_tokens_ties_included():
    sort, search = show.draw_search([3, 9, 9, 14], k=2, guesses=[7, 10]).axes
    assert [bar.get_height() for bar in sort.patches] == [14, 9, 9, 3]
    assert coloured(search.patches, GREY, BLUE, BLUE, BLUE)
    assert list(search.lines[0].get_ydata()) == [7, 10]


def test_curves_are_as_given():
    (axes,) = show.draw_curves({"old": {1: 10, 3: 4000}, "new": {1: 5, 3: 6}}, "x", "y", "t").axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, 10], [3, 4000]], [[1, 5], [3, 6]]]
    (axes,) = show.draw_curves({"old": {1: 10, 3: 4000}}, "x", "y", "t", log="y").axes
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlim()[0]) == ("linear", "log", 0)


def test_paths_of_tokens_are_stacked_step_by_step():
    figure = show.draw_paths({"a run": [{"in_place": 2, "boundary": 1}, {"in_place": 3}]})
    heights = [[patch.get_height() for patch in bars] for bars in figure.axes[0].containers]
    assert heights == [[2, 3], [1, 0]]


def compared(before, after):
    return Comparison("one", "cut", before, after, {}, {})


def test_every_comparison_has_its_point_and_its_interval():
    faster, slower = compared((2.0,) * 4, (1.0,) * 4), compared((1.0,) * 4, (2.0,) * 4)
    unknown = compared((1.0, 1.3, 1.0, 1.3), (1.2, 1.0, 1.2, 1.0))
    gains = {"large": {"2 × H100": {1: faster, 32: unknown}, "4 × H200": {1: faster}}}
    fig = show.draw_gains(gains | {"small": {"2 × H100": {32: slower}}})
    large, small = fig.axes
    assert (large.get_title("left"), small.get_title("left")) == ("large", "small")
    points = [line for line in large.lines if line.get_marker() == "o"]
    assert [point.get_ydata()[0] for point in points] == pytest.approx([2, unknown.speedup, 2])
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, False]
    assert [label.get_text() for label in small.get_xticklabels()] == ["1", "32"]
    assert "large, small" in fig.get_label()
