"""Attention in pieces: programs, shares, times."""

import pytest
from figures import texts, tick_labels, titles

from labkit import show
from labkit.results.attention_time import AttentionTime


def test_attention_times_name_the_kernels():
    times = [
        AttentionTime(kernel, 8, length, 1, (seconds,), 100)
        for kernel, seconds in (("one_program", 4e-6), ("split", 2e-6))
        for length in (100, 900)
    ]
    figure = show.draw_attention_times(times, bandwidth=1e8)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == pytest.approx([4.0, 2.0])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["B = 8, rung 07's kernel", "B = 8, rung 09's kernel"]


def test_programs_are_counted_by_request_head_and_split_beside_the_multiprocessors():
    axes = show.draw_programs((1, 8), 12, splits=(11, 2), multiprocessors=132, at_once=1056).axes[0]
    one, split, line, limit = axes.lines
    assert (list(one.get_ydata()), list(split.get_ydata())) == ([12, 96], [132, 192])
    assert (list(line.get_ydata()), list(limit.get_ydata())) == ([132, 132], [1056, 1056])
    notes = ["132 multiprocessors: below, some have nothing to do", "1,056 run at once"]
    assert [text.get_text() for text in axes.texts] == ["× 11", "× 2", *notes]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("B: requests of a step", "programs")
    assert tick_labels(axes.xaxis) == ["1", "8"]


def test_a_request_in_shares_says_how_many_programs_work_and_what_the_longest_reads():
    ways = {
        "whole": {"70 tokens": [(0, 70, 0)]},
        "in two": {"70 tokens": [(0, 32, 0), (32, 32, 1), (64, 6, 0)], "5 tokens": [(0, 5, 0)]},
    }
    figure = show.draw_shares(ways)
    assert titles(figure) == ["whole", "in two"]
    assert texts(figure) == ["0", "1 at work,\nat most 70 tokens"]
    assert [text.get_text() for text in figure.axes[1].texts] == [
        *("0", "1", "0", "2 at work,\nat most 38 tokens"),
        *("0", "1 at work,\nat most 5 tokens"),
    ]
    pieces = [(bar.get_x(), bar.get_width()) for bar in figure.axes[1].patches if bar.get_height()]
    assert pieces == [(0, 32), (32, 32), (64, 6), (0, 5)]
    assert figure.axes[1].get_xlabel() == (
        "tokens in the cache (in each piece, the number of the program that reads it)"
    )
