"""The weights of one head over the tokens of a text."""

from figures import shown_texts, tick_labels, title
from matplotlib.colors import to_hex

from labkit import show
from labkit.show.style import BLUE, ORANGE

TOKENS = ("ROMEO", ":", "\n", "Good", " night", "eel")


def drawn(yours=(0.1, 0.3, 0.1, 0.1, 0.1, 0.3), expected=(0, 1, 0, 0, 0, 0)):
    return show.draw_weights(TOKENS, (0, 7), 4, yours, expected, "What it looks at")


def test_each_token_has_its_word_its_weight_and_its_block():
    figure = drawn()
    axes = figure.axes[0]
    assert tick_labels(axes.xaxis) == ["ROMEO", ":", "↵", "Good", "·night", "eel"]
    yours, expected = axes.containers
    assert [bar.get_height() for bar in yours] == [0.1, 0.3, 0.1, 0.1, 0.1, 0.3]
    assert [bar.get_height() for bar in expected] == [0, 1, 0, 0, 0, 0]
    assert shown_texts(figure) == ["block 0", "block 7"] and title(figure) == "What it looks at"
    assert axes.get_ylabel() == "weight (they add up to 1)"


def test_the_new_token_is_in_no_block_yet():
    yours, _ = drawn().axes[0].containers
    assert [to_hex(bar.get_facecolor()).upper() for bar in yours] == [BLUE] * 5 + [ORANGE]


def test_blocks_are_as_wide_as_their_slots():
    axes = drawn().axes[0]
    boxes = axes.patches[-2:]
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(-0.5, 4), (3.5, 4)]
    assert axes.get_xlim()[1] > 7.5  # the last block is seen as a whole
