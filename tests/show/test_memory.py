"""Memory set aside, and how much of it is used."""

from figures import shown_texts, tick_labels

from labkit import show


def test_reservation_says_what_is_used():
    texts = shown_texts(show.draw_reservation([30, 70], max_length=100, block_size=64))
    assert texts == ["  50 % used", "  52 % used"]
    texts = shown_texts(show.draw_reservation([64, 128], max_length=256, block_size=64))
    assert texts == ["  38 % used", "  100 % used"]  # full blocks waste nothing


def test_what_is_used_lies_over_what_is_set_aside():
    axes = show.draw_reservation([30, 70], max_length=100, block_size=64).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [200, 100, 64 + 128, 100]
    assert tick_labels(axes.yaxis) == ["contiguous: the longest possible", "paged: blocks of 64"]
    assert axes.get_xlabel() == "KV slots set aside for 2 requests (one slot: one token in every layer)"
