"""What the kernel of a write is told."""

import pytest
from figures import WAYS

from labkit import show


def test_write_indices_show_what_is_told_and_what_is_not():
    figure = show.draw_write_indices(WAYS)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [t for t in texts if "index tensor" in t] == ["before: 3 index tensors", "after: 1 index tensor"]
    assert texts.count("20") == 3 + 1 and texts.count("7") == 2 and texts.count("2") == 1
    said = [t for t in texts if t.startswith(("a ", "nothing"))]
    tensor = "a tensor: made, copied, waited for"
    assert said == [tensor] * 3 + [
        "nothing: row b is request b",
        tensor,
        "a number: an argument of the kernel",
    ]


def test_a_batch_too_large_to_draw_is_refused():
    with pytest.raises(ValueError, match="17 requests are too many to draw; the most is 16"):
        show.draw_write_indices({"all": {"block_idx": range(17), "pos": 3}})
