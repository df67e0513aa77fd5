"""The parts of a step as bars."""

import matplotlib.pyplot as plt
import pytest

from labkit import show


def up_to_05(append):
    return {"block tables": 2.0, "append": append, "the rest": 3.0}


def test_the_bars_are_per_cent_of_the_step_before():
    pairs = {"B = 8": (up_to_05(18.0), up_to_05(10.0)), "B = 64": (up_to_05(74.0), up_to_05(10.0))}
    fig = show.draw_host_shares(pairs, ("04", "05"))
    (axes,) = fig.axes
    ends = [p.get_x() + p.get_width() for p in axes.patches[2::3]]  # of the last part of each bar
    assert ends == pytest.approx([100, 100 * 15 / 23, 100, 100 * 15 / 79])
    assert [t.get_text() for t in axes.texts if t.get_text().startswith("rung 04")] == [
        "rung 04: 23 µs",
        "rung 04: 79 µs",
    ]
    assert [t.get_text() for t in axes.get_yticklabels()] == list(pairs)
    plt.close(fig)


def test_each_engine_of_each_group_has_a_bar_of_its_parts():
    parts = {"reserve": 3.0, "tell the device": 2.0, "launch and the rest": 5.0}
    fig = show.draw_host_parts({"B = 8": {"a": parts, "b": parts | {"launch and the rest": 15.0}}})
    (axes,) = fig.axes
    assert [p.get_x() + p.get_width() for p in axes.patches[2::3]] == pytest.approx([10, 20])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["B = 8, a", "B = 8, b"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == list(parts)
    plt.close(fig)
