"""The figure of progress: a mark per gate, a dot per prediction, and their counts in words."""

from figures import shown_texts, tick_labels
from matplotlib.colors import same_color

from labkit.show.progress import ProgressRow, draw_progress
from labkit.show.style import BLUE, GREEN, ORANGE

ROWS = (
    ProgressRow("00 Zero"),
    ProgressRow("01 One", True, (1.0, 2.0, 3.5)),
    ProgressRow("02 Two", False, (float("inf"),)),
)


def test_gates_are_marked_and_guesses_lie_by_their_factor():
    gates, guesses = draw_progress(ROWS).axes
    assert tick_labels(gates.yaxis) == [row.title for row in ROWS]
    assert [line.get_ydata()[0] for line in gates.lines] == [1, 2]
    assert [line.get_markerfacecolor() for line in gates.lines] == [GREEN, "none"]
    assert gates.get_xlabel() == "1 of 2 passed"
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in guesses.lines]
    assert dots == [(1, 1), (2, 1), (3.5, 1), (100, 2)]
    near = [same_color(line.get_color(), BLUE) for line in guesses.lines]
    assert near == [True, True, False, False]
    assert same_color(guesses.lines[-1].get_color(), ORANGE)
    assert guesses.get_xlabel().endswith("2 of 4 within ×2")


def test_before_anything_is_done_the_figure_says_so():
    assert "no prediction scored yet" in shown_texts(draw_progress(ROWS[:1]))
