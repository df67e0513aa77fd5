"""Block tables beside each other, and the pool behind them."""

import matplotlib.pyplot as plt

from labkit import show
from labkit.watch import LayerTables, PoolUse


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


def test_the_pool_is_drawn_a_line_an_engine():
    uses = [PoolUse(3, 5, 3), PoolUse(2, 8, 0)]
    fig = show.draw_pool_use({"a": uses, "b": uses}, 4, 4)
    assert [line.get_ydata().tolist() for line in fig.axes[0].lines] == [[3, 2], [3, 2]]
    assert [line.get_ydata().tolist() for line in fig.axes[1].lines] == [[3, 0], [3, 0]]
    plt.close(fig)
