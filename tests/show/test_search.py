"""A sort beside a search: the same tokens kept, and the guesses in their order."""

from figures import tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, GREY


def test_both_panels_keep_the_same_tokens_ties_included():
    figure = show.draw_search([3, 9, 9, 14], k=2, guesses=[7, 10])
    sort, search = figure.axes
    assert title(figure).startswith("A sort moves all 4 tokens")
    assert search.get_title("left") == "A search moves none: 2 guesses"
    assert tick_labels(sort.xaxis) == ["3", "1", "2", "0"]
    assert tick_labels(search.xaxis) == ["0", "1", "2", "3", "1", "2"]
    assert [bar.get_height() for bar in sort.patches] == [14, 9, 9, 3]
    shades = [GREY, BLUE, BLUE, BLUE]
    assert all(same_color(b.get_facecolor(), c) for b, c in zip(search.patches, shades, strict=True))
    (guesses, cut, _) = search.lines
    assert list(guesses.get_ydata()) == [7, 10] and set(cut.get_ydata()) == {9}
