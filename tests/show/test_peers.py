"""Engines side by side, and the parts of a step beside the least that they could take."""

from figures import lines, texts, tick_labels
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, ORANGE


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


def test_the_parts_of_a_step_stand_above_the_share_that_its_bytes_explain():
    measured, least = {"weights": 30.0, "attention": 50.0, "host": 20.0}, {"weights": 24.0, "attention": 16.0}
    figure = show.draw_step_parts({"B = 1": (measured, least), "B = 8": (least, {"weights": 10.0})})
    assert texts(figure) == ["  100 µs", "  40 µs, 40 % of it", "  40 µs", "  10 µs, 25 % of it"]
    assert tick_labels(figure.axes[0].yaxis)[:2] == ["B = 1, measured", "B = 1, at the limit"]
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert bars == [(0, 30), (30, 50), (80, 20), (0, 24), (24, 16), (0, 24), (24, 16), (0, 10)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["weights", "attention", "host"]


def test_near_rates_are_drawn_from_zero():
    fig = show.draw_peers({"a": [10.0, 11.0], "b": [12.0]})
    (axes,) = fig.axes
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
