"""The host's and the GPU's work on one clock."""

import pytest
from figures import titles
from matplotlib.colors import same_color

from labkit import show
from labkit.show import Busy
from labkit.show.style import BLUE, GREEN, ORANGE, PALE

AT_ONCE = [
    Busy("host", "launch", 0, 0.0, 50.0),
    Busy("GPU", "gpu", 0, 50.0, 350.0),
    Busy("host", "accept", 0, 350.0, 400.0),
    Busy("GPU", "gpu", 1, 450.0, 750.0),
]


def boxes(axes) -> list[tuple[float, float, float, str]]:
    """Left, right, the middle of the height, and the colour of all that is drawn."""
    return [
        (box.get_x(), box.get_x() + box.get_width(), box.get_y() + box.get_height() / 2, box.get_facecolor())
        for box in axes.patches
    ]


def test_each_piece_of_work_is_a_box_in_its_lane_on_the_pale_ground_of_waiting():
    (axes,) = show.draw_schedules({"at once": AT_ONCE}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["host", "GPU"]
    drawn = boxes(axes)
    places = [box[:3] for box in drawn]
    host, gpu = pytest.approx(0), pytest.approx(1)
    assert places == [
        (0, 750, host),
        (0, 50, host),
        (350, 400, host),
        (0, 750, gpu),
        (50, 350, gpu),
        (450, 750, gpu),
    ]
    shades = [PALE, BLUE, ORANGE, PALE, GREEN]
    assert all(same_color(box[3], shade) for box, shade in zip(drawn, shades, strict=False))
    assert not same_color(drawn[4][3], drawn[5][3])  # even and odd steps are told apart
    assert [text.get_text() for text in axes.texts] == ["0", "0", "0", "1"]


def test_schedules_share_a_clock_that_ends_where_it_is_told_to():
    figure = show.draw_schedules({"a": AT_ONCE, "b": AT_ONCE[:2]}, notes={"b": "one step"}, end=300)
    assert titles(figure) == ["a", "b: one step"]
    assert [axes.get_xlim() for axes in figure.axes] == [(0, 300), (0, 300)]
    assert all(right <= 300 for axes in figure.axes for _, right, _, _ in boxes(axes))
    assert figure.axes[1].get_xlabel() == "microseconds"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    host = ["host: make room, launch", "host: read, end requests, hand out"]
    assert legend == [*host, "GPU: the step itself", "waits"]


def test_the_legend_has_other_words_for_other_work():
    figure = show.draw_schedules({"a": AT_ONCE[1:2]}, words={"gpu": "GPU: runs a kernel"})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["GPU: runs a kernel", "waits"]
    assert same_color(figure.legends[0].get_patches()[0].get_facecolor(), GREEN)


def test_a_box_too_narrow_for_a_number_has_none():
    (axes,) = show.draw_schedules(
        {"a": [Busy("host", "launch", 7, 0, 10), Busy("GPU", "gpu", 8, 10, 1000)]}
    ).axes
    assert [text.get_text() for text in axes.texts] == ["8"]


def test_boxes_of_a_lane_that_overlap_stand_one_below_the_other():
    """So a GPU that runs two kernels at once can be seen. Rounding is no overlap."""
    spans = [(0, 50), (20, 70), (50, 90), (80, 100)]
    (axes,) = show.draw_schedules({"a": [Busy("GPU", "gpu", i, *span) for i, span in enumerate(spans)]}).axes
    upper, lower = pytest.approx(0.8), pytest.approx(1.2)
    assert [box[2] for box in boxes(axes)[2:]] == [upper, lower, upper, lower]
    assert [text.get_position()[1] for text in axes.texts] == [upper, lower, upper, lower]

    after = [Busy("GPU", "gpu", 0, 0, 0.3), Busy("GPU", "gpu", 1, 0.1 + 0.2 - 1e-9, 1)]
    (axes,) = show.draw_schedules({"a": after}).axes
    assert [box[2] for box in boxes(axes)[2:]] == [pytest.approx(1)] * 2
