"""Memory set aside, and how much of it is used."""

from figures import shown_texts

from labkit import show


def test_reservation_says_what_is_used():
    texts = shown_texts(show.draw_reservation([30, 70], max_length=100, block_size=64))
    assert texts == ["  50 % used", "  52 % used"]
    texts = shown_texts(show.draw_reservation([64, 128], max_length=256, block_size=64))
    assert texts == ["  38 % used", "  100 % used"]  # full blocks waste nothing
