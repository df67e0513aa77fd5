"""Block tables beside each other."""

import matplotlib.pyplot as plt

from labkit import show
from labkit.watch import LayerTables


def test_each_table_is_a_row_and_each_block_a_box():
    places = {0: (4, 2), 3: (1,)}
    tables = {
        "a table per layer": LayerTables(3, 3, {i: [blocks] * 3 for i, blocks in places.items()}),
        "one table": LayerTables(3, 1, {i: [blocks] for i, blocks in places.items()}),
    }
    fig = show.draw_tables(tables)
    texts = [[t.get_text() for t in axes.texts] for axes in fig.axes]
    numbers = [[text for text in panel if text.isdigit()] for panel in texts]
    assert numbers == [["4", "2"] * 3 + ["1"] * 3, ["4", "2", "1"]]
    assert [len(axes.patches) for axes in fig.axes] == [9, 3]
    assert [text for text in texts[1] if "request" in text] == ["request 0", "request 3"]
    assert [t.get_text() for t in fig.axes[1].get_yticklabels()] == ["all 3 layers"]
    plt.close(fig)


def test_what_requests_share_has_a_border():
    fig = show.draw_tables({"shared": LayerTables(2, 1, {0: [(4, 2)], 1: [(4,)]})})
    borders = [box.get_xy() for box in fig.axes[0].patches if not box.get_fill()]
    assert len(borders) == 2 and len(fig.axes[0].patches) == 3 + 2
    plt.close(fig)
