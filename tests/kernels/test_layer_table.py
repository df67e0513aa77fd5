"""What is refused as a weight of all layers; their addresses are read in test_persistent_layers.py."""

import pytest
from persistent_cases import make_case

from labkit.kernels.layer_table import LayerTable


def test_a_table_names_the_weight_that_does_not_fit():
    first, second = make_case(1).table.layers
    with pytest.raises(ValueError, match="layers is empty"):
        LayerTable([])
    wrong = second.mlp_out._replace(weight=second.mlp_out.weight.T)
    with pytest.raises(ValueError, match=r"layers\[1\].mlp_out.weight has shape"):
        LayerTable([first, second._replace(mlp_out=wrong)])
    wrong = second.attention_out._replace(weight=second.attention_out.weight.T)
    with pytest.raises(ValueError, match=r"layers\[1\].attention_out.weight has strides"):
        LayerTable([first, second._replace(attention_out=wrong)])
    wrong = second.qkv._replace(bias=second.qkv.bias.half())
    with pytest.raises(ValueError, match=r"layers\[1\].qkv.bias is torch.float16"):
        LayerTable([first, second._replace(qkv=wrong)])
    with pytest.raises(ValueError, match=r"mlp_in.eps are not all the same"):
        LayerTable([first, second._replace(mlp_in=second.mlp_in._replace(eps=1.0))])
