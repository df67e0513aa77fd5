"""One look: width, style, and text that is neither cut off nor written over."""

from itertools import combinations

import matplotlib.pyplot as plt
import pytest
from figures import WAYS, all_texts, comparison
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib.text import Text

from labkit import LADDER, show
from labkit.results import Comparison
from labkit.show.style import DPI, WIDTH, alt_text, figure


def twelve_rungs():
    return {number: [1000 * 1.5**i, 1010 * 1.5**i] * 2 for i, number in enumerate([*LADDER][:12])}


FIGURES = {
    "comparison": lambda: show.draw_comparison(
        {f"recorded: a device with a long name, {i}": comparison(1 + i / 10) for i in range(12)}
    ),
    "one_round": lambda: show.draw_comparison(
        {"a device with a long name": Comparison("old", "new", (5.0, 5.2), (1.0, 0.95), {}, {})}
    ),
    "ladder": lambda: show.draw_ladder(twelve_rungs(), 480_000),
    "write_indices": lambda: show.draw_write_indices(WAYS),
    "many_requests": lambda: show.draw_write_indices(
        {"sixteen": {"block_idx": range(1000, 1016), "pos": 63}}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_or_written_over(name):
    figure = FIGURES[name]()
    assert (figure.get_figwidth(), figure.dpi) == (WIDTH, DPI)
    figure.canvas.draw()
    # Of an annotation only the text, not its line.
    areas = [(text.get_text(), Text.get_window_extent(text)) for text in all_texts(figure)]
    width, height = figure.canvas.get_width_height()
    for text, area in areas:
        inside = min(area.x0, area.y0) > -1 and area.x1 < width + 1 and area.y1 < height + 1
        assert inside, f"{text!r} leaves the picture"
    for (text, area), (other_text, other) in combinations(areas, 2):
        # Lines of text may touch: what a font keeps free above and below belongs to its area.
        assert not area.padded(0, -2).overlaps(other), f"{text!r} is written over {other_text!r}"


def test_drawing_leaves_the_readers_own_style_alone():
    before = plt.rcParams["axes.titleweight"]
    show.draw_curves({"old": {1: 9, 2: 5}}, "x", "y", "t")
    assert plt.rcParams["axes.titleweight"] == before != "bold"


def test_a_figure_says_its_titles_once_each_and_in_order():
    fig, (top, middle, bottom) = figure(3, rows=3)
    top.set_title("Blocks of\n4 tokens", loc="left")
    middle.set_title("Rows")
    bottom.set_title("Rows")
    assert alt_text(fig) == "Blocks of 4 tokens. Rows"
    fig.set_label("Blocks, and rows")
    assert alt_text(fig) == "Blocks, and rows"


def test_a_notebook_stores_what_a_figure_says_with_its_picture():
    formatter = InteractiveShell().display_formatter
    select_figure_formats(formatter.parent, {"png"})
    fig, axes = figure(1)
    axes.set_title("All is well")
    forms, metadata = formatter.format(fig)
    assert forms["image/png"] and metadata == {"image/png": {"alt": "All is well"}}
