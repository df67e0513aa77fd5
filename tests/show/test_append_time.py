"""The time of one layer's write, and the bytes that it moves."""

import pytest
from figures import TIMES
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import INK


def test_append_times_have_a_line_a_path_in_both_panels():
    top, bottom = show.draw_append_times(TIMES, 3e12).axes
    for axes in (top, bottom):
        paths = [line for line in axes.lines if line.get_linestyle() == "-"]
        assert [line.get_label() for line in paths] == ["indexed", "generic", "full_batch", "identity_pos"]
        assert all(list(line.get_xdata()) == [1, 32, 2048] for line in paths)
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(top.lines[0].get_ydata()) == pytest.approx([14, 15, 37])
    assert list(bottom.lines[2].get_ydata()) == pytest.approx([5.12, 140.4, 786.4], rel=1e-3)
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("microseconds", "GB per second")
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["1", "32", "2048"]


def test_append_times_stand_beside_the_copys_rate():
    axes = show.draw_append_times(TIMES, 3e12).axes[1]
    (copy,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(copy.get_ydata()) == [3000, 3000] and same_color(copy.get_color(), INK)
    assert [text.get_text() for text in axes.texts] == ["a large copy: 3,000 GB/s"]
    # 2048 * 6144 bytes in 11 us are 1.14 TB/s
    assert axes.get_title(loc="left") == "What it moves: at best 38 % of a copy's rate (generic, B = 2048)"


def test_append_times_of_some_paths_only():
    figure = show.draw_append_times(TIMES[:3], 3e12)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["indexed"]
