"""Programs as high as what they read: the long row's stand out."""

from figures import title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, ORANGE


def test_each_program_is_a_bar_and_the_longest_a_line():
    figure = show.draw_share_sizes(
        {"before": [(0, 2), (1, 9)], "after": [(0, 2), (1, 5), (1, 4)]}, long_row=1
    )
    _, after = figure.axes
    assert title(figure).startswith("before: 2 programs per head, the longest reads 9 pieces")
    assert after.get_title("left") == "after: 3 programs per head, the longest reads 5 pieces"
    assert [bar.get_height() for bar in after.patches] == [2, 5, 4]
    shades = [BLUE, ORANGE, ORANGE]
    assert all(same_color(b.get_facecolor(), c) for b, c in zip(after.patches, shades, strict=True))
    assert after.lines[0].get_ydata()[0] == 5
