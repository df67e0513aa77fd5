"""Steps as wide as what they compute, and a box for each request that is in one."""

from figures import tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show import JoinStep
from labkit.show.style import BLUE, GREEN, ORANGE

STEPS = [JoinStep(2, {0: "token"}), JoinStep(30, {0: "waits", 3: "prompt"}), JoinStep(4, {0: "token"})]


def test_a_step_is_as_wide_as_its_rows():
    figure = show.draw_joins({"Rung 12": STEPS, "other": STEPS[:1]}, {"Rung 12": "a note"})
    first, second = figure.axes
    assert title(figure).startswith("Rung 12: a note") and second.get_title("left") == "other"
    assert tick_labels(first.yaxis) == ["request 0", "request 3"]
    boxes = [(box.get_x(), box.get_width()) for box in first.patches]
    assert boxes == [(0, 2), (2, 30), (2, 30), (32, 4)]
    colours = [BLUE, ORANGE, GREEN, BLUE]
    assert all(same_color(b.get_facecolor(), c) for b, c in zip(first.patches, colours, strict=True))
    assert [line.get_xdata()[0] for line in first.lines] == [2, 32, 36]
