"""The figure of progress: a bar of steps per lesson, a dot per prediction, and their counts in words."""

from figures import shown_texts, tick_labels
from matplotlib.colors import same_color

from labkit.show.progress import ProgressRow, draw_progress
from labkit.show.style import BLUE, GREEN, ORANGE

ROWS = (
    ProgressRow("00 Zero"),
    ProgressRow("01 One", 1.0, (1.0, 2.0, 3.5)),
    ProgressRow("02 Two", 0.25, (float("inf"),)),
)


def test_right_steps_fill_a_bar_and_guesses_lie_by_their_factor():
    steps, guesses = draw_progress(ROWS).axes
    assert tick_labels(steps.yaxis) == [row.title for row in ROWS]
    filled, framed = steps.containers
    assert [(bar.get_y() + 0.25, bar.get_width()) for bar in filled] == [(1, 1), (2, 0.25)]
    assert [bar.get_width() for bar in framed] == [1, 1]
    assert same_color(filled[0].get_facecolor(), GREEN)
    assert steps.get_xlabel() == "1 of 2 passed"
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in guesses.lines]
    assert dots == [(1, 1), (2, 1), (3.5, 1), (100, 2)]
    near = [same_color(line.get_color(), BLUE) for line in guesses.lines]
    assert near == [True, True, False, False]
    assert same_color(guesses.lines[-1].get_color(), ORANGE)
    assert guesses.get_xlabel().endswith("2 of 4 within ×2")


def test_before_anything_is_done_the_figure_says_so():
    assert "no prediction scored yet" in shown_texts(draw_progress(ROWS[:1]))
