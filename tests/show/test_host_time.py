"""Host time: lines over the batch size, and what a request adds."""

import numpy as np
import pytest
from figures import host_times, texts, tick_labels

from labkit import results, show
from labkit.show.host_time import spread


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
    assert results.slope_us(bent[::-1]) == pytest.approx(30)
    assert results.slope_us(host_times(10, 5, sizes=(1, 8))) == pytest.approx(5)
    assert results.slope_us(host_times(10, 5, sizes=(8,))) is None
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
