"""Prompts padded and packed: every token is in both, and pads are in one."""

from figures import title
from matplotlib.patches import Rectangle

from labkit import show
from labkit.show.packing import chunks_of


def test_the_titles_count_rows_tokens_and_pads():
    figure = show.draw_packing([5, 2, 3], max_tokens=4)
    padded, packed = figure.axes
    assert title(figure).startswith("Padded: 15 rows for 10 tokens, 5 of them pads")
    assert packed.get_title("left") == "Packed: 10 rows, in 3 chunks of at most 4"
    widths = [[p.get_width() for p in axes.patches if isinstance(p, Rectangle)] for axes in (padded, packed)]
    assert widths == [[5, 2, 3, 3, 2], [4, 1, 2, 1, 2]]
    assert sum(widths[0]) == 15 and sum(widths[1]) == 10


def test_chunks_are_filled_without_a_gap():
    assert chunks_of([5, 2, 3], 4) == [[(0, 0, 4)], [(0, 0, 1), (1, 1, 3), (2, 3, 4)], [(2, 0, 2)]]
    assert chunks_of([4], 4) == [[(0, 0, 4)]]
