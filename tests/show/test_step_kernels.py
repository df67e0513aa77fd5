"""The kernels of a layer and of a step."""

import pytest
from figures import tick_labels

from labkit import show
from labkit.show.step_kernels import KernelBox


def test_a_layers_kernels_stand_where_those_of_the_row_above_do():
    rows = {
        "apart": [KernelBox("norm", 1, 10), KernelBox("linear", 1, 30), KernelBox("attention", 1, 20)],
        "fused": [KernelBox("norm_linear", 2, 30), KernelBox("attention", 1, 20)],
    }
    axes = show.draw_layer_kernels(rows).axes[0]
    assert [box.get_x() for box in axes.patches] == pytest.approx([0.04, 1.04, 2.04, 0.04, 2.04])
    assert tick_labels(axes.yaxis) == ["apart 3 kernels", "fused 2 kernels"]
