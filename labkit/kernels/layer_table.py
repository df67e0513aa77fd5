"""Where the weights of a decoder's layers are, for a kernel that goes through all of them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import NormLinear

ALIGNMENT = 16  # bytes: at a multiple of it each weight begins that the kernel reads

# Of a layer, in the order of its phases; each place holds an address.
TENSORS = (
    ("qkv", "weight"),
    ("qkv", "column_sums"),
    ("qkv", "bias"),
    ("attention_out", "weight"),
    ("attention_out", "bias"),
    ("mlp_in", "weight"),
    ("mlp_in", "column_sums"),
    ("mlp_in", "bias"),
    ("mlp_out", "weight"),
    ("mlp_out", "bias"),
)


class LayerTable:
    """The layers of a decoder and, for a kernel that goes through all of them, the addresses of their
    weights."""

    def __init__(self, layers: Sequence[Any]) -> None:
        """layers: each with the products of TENSORS: qkv and mlp_in as `fold_layer_norm` makes them, the
        others with a weight [N, K] and a bias [N] or None.

        Raises ValueError naming the first weight whose shape, strides, dtype or device do not fit."""
        if not layers:
            raise ValueError("layers is empty, expected at least one layer")
        self.layers = tuple(layers)
        self.no_bias = torch.zeros_like(self.layers[0].attention_out.weight[:, 0])
        self._tensors = [self._tensor(i, *name) for i in range(len(layers)) for name in TENSORS]
        for name in ("qkv", "mlp_in"):
            if len({getattr(layer, name).eps for layer in self.layers}) > 1:
                raise ValueError(f"the layers' {name}.eps are not all the same")

    @cached_property
    def addresses(self) -> Tensor:
        """Of each layer's TENSORS: [L, 10] int64. A weight that is not aligned is copied when they are first
        asked for, as a checkpoint's can be on the CPU, where it lies in the file's own memory."""
        self._tensors = [t.clone() if t.data_ptr() % ALIGNMENT else t for t in self._tensors]
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        return torch.tensor(addresses, dtype=torch.int64, device=self.no_bias.device).view(-1, len(TENSORS))

    def _tensor(self, layer_idx: int, product: str, name: str) -> Tensor:
        weight = self.layers[0].qkv.weight
        E, inner = weight.shape[1], len(self.layers[0].mlp_in.weight)
        N, K = {
            "qkv": (3 * E, E),
            "attention_out": (E, E),
            "mlp_in": (inner, E),
            "mlp_out": (E, inner),
        }[product]
        linear = getattr(self.layers[layer_idx], product)
        tensor = getattr(linear, name)
        tensor = self.no_bias if tensor is None else tensor
        is_float32 = isinstance(linear, NormLinear) and name != "weight"
        label = f"layers[{layer_idx}].{product}.{name}"
        check_tensor(
            label,
            tensor,
            shape=(N, K) if name == "weight" else (N,),
            dtype=torch.float32 if is_float32 else weight.dtype,
            device=weight.device,
            is_contiguous=True,
        )
        return tensor
