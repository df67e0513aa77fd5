"""A block's records as boxes."""

import matplotlib.pyplot as plt

from labkit import show


def test_a_box_is_drawn_for_each_record_in_charge():
    fig = show.draw_block_lives({"replaced": tuple(range(2, 10)), "mutable": (1,) * 8})
    (axes,) = fig.axes
    boxes = [(p.get_x(), p.get_width()) for p in axes.patches]
    assert boxes == [*((float(t), 1) for t in range(8)), (0, 8)]
    assert [t.get_text().split()[0] for t in axes.texts] == ["9", "1"]
    plt.close(fig)
