"""The addresses of all layers' weights, and what is refused as a weight."""

import pytest
from persistent_cases import make_case

from labkit.kernels.layer_table import TENSORS, LayerTable


def test_it_has_the_address_of_each_weight_in_the_order_of_the_phases():
    table = make_case([1], L=3).table
    assert table.addresses.shape == (3, 10)
    for layer, row in zip(table.layers, table.addresses.tolist(), strict=True):
        assert row == [getattr(getattr(layer, product), name).data_ptr() for product, name in TENSORS]


def test_where_there_is_no_bias_there_are_zeros():
    table = make_case([1], bias=False).table
    places = [i for i, name in enumerate(TENSORS) if name in (("attention_out", "bias"), ("mlp_out", "bias"))]
    assert set(table.addresses[:, places].flatten().tolist()) == {table.no_bias.data_ptr()}
    assert table.no_bias.tolist() == [0.0] * 16


def test_a_table_names_the_weight_that_does_not_fit():
    first, second = make_case([1]).table.layers
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
