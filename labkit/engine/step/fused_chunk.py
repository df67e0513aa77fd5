"""A chunk of prompt tokens through the kernels of a fused decode step (rung 13).

T rows of the chunk, P prompts, H heads, G heads of keys and values, D head size, E embedding, V vocabulary.
"""

from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from labkit.engine.step.chunk import ChunkStep, PackedAttention
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.fused import (
    FusedDeviceStep,
    FusedKernels,
    FusedLayer,
    Rows,
    by_library,
    suited,
    with_rounded_bias,
)
from labkit.kernels import PackedRows
from labkit.kernels.library_linear import linear_into_residual, norm_linear_library
from labkit.kernels.tiles import ROWS
from labkit.model import Network
from labkit.model.decoder_weights import split_heads
from labkit.ranges import named_range

MOST_ROWS = ROWS[-1]  # that tiles are measured for; with more, PyTorch's products are faster


class ChunkLayers(FusedDeviceStep):
    """The layers of a decode step, with the step's weights, for the rows of a chunk."""

    def __init__(self, step: FusedDeviceStep, attention: PackedAttention, kernels: FusedKernels) -> None:
        vars(self).update(vars(step))  # its weights are in memory once
        self.kernels = kernels
        self._packed_attention = attention

    def begin_chunk(self, rows: PackedRows) -> None:
        """Prepare for a chunk of these rows, before its first layer."""
        self._packed_attention.begin(rows)

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        """Attention [T, H * D] of one layer for its queries, keys and values [T, (H + 2 * G) * D], which are
        stored."""
        heads = split_heads(qkv, *self._heads)
        return self._packed_attention.attend_rows(
            layer_idx, *heads, self.layers[layer_idx].transform
        ).flatten(1)

    def chunk_logits(self, token_ids: Tensor, positions: Tensor, last_rows: Tensor | None = None) -> Tensor:
        """Logits [P, V] after the rows last_rows [P] of a chunk, or [T, V] after all: token_ids and positions
        [T], int64."""
        x, _ = self._through(len(self.layers), token_ids, positions)
        return self.logits(x if last_rows is None else x[last_rows])

    def last_logits(self, token_ids: Tensor, positions: Tensor, last_rows: Tensor) -> Tensor:
        """Logits [P, V] after each prompt's last row in a chunk. Nobody asks the last layer for more of the
        other rows than their keys and values."""
        alone, last_idx = self._packed_attention.rows.last, len(self.layers) - 1
        x, statistics = self._through(last_idx, token_ids, positions)
        layer, kernels = self.layers[last_idx], self.kernels
        qkv = kernels.norm_linear(x, statistics, layer.qkv)
        query, key, value = split_heads(qkv, *self._heads)
        attended = self._packed_attention.attend_rows(
            last_idx, query[last_rows], key, value, layer.transform, alone
        )
        x, statistics = kernels.linear_residual(attended.flatten(1), *layer.attention_out, x[last_rows])
        inner = kernels.norm_linear(x, statistics, layer.mlp_in, gelu=not layer.mlp_in.is_gated)
        x, statistics = kernels.linear_residual(inner, *layer.mlp_out, x)
        return self.gathered(norm_linear_library(x, statistics, self.library_head))

    def _through(self, num_layers: int, token_ids: Tensor, positions: Tensor) -> Rows:
        """What leaves the first layers [T, E], with the statistics of its rows."""
        slots = torch.arange(len(token_ids), device=token_ids.device)  # each row is its own
        x, statistics = self.kernels.embed(slots, token_ids, positions.int(), *self._tables)
        for layer_idx in range(num_layers):
            x, statistics = self.layer(layer_idx, x, statistics)
        return x, statistics


def with_rounded_biases(layer: FusedLayer) -> FusedLayer:
    """The layer with the biases behind its norms in their weights' dtype."""
    return layer._replace(qkv=with_rounded_bias(layer.qkv), mlp_in=with_rounded_bias(layer.mlp_in))


def with_biases_so_far(layers: list[FusedLayer]) -> list[FusedLayer]:
    """The layers with the sum of all biases so far, in float32, where each adds its own to the residual: what
    `linear_into_residual` takes."""
    products = [product for layer in layers for product in (layer.attention_out, layer.mlp_out)]
    _, *offsets = accumulate([None, *(product.bias for product in products)], added)
    return [
        layer._replace(
            attention_out=layer.attention_out._replace(bias=first),
            mlp_out=layer.mlp_out._replace(bias=second),
        )
        for layer, first, second in zip(layers, offsets[::2], offsets[1::2], strict=True)
    ]


def added(offset: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """offset + bias in float32, of which either may be absent."""
    if bias is None:
        return offset
    return bias.float() if offset is None else offset + bias.float()


class FusedChunkStep(ChunkStep):
    """A `ChunkStep` by a decode step's weights and kernels. For more than `MOST_ROWS` rows the products are
    PyTorch's, and the last layer has only the prompts' last rows: there they take the time, and not the waits
    between kernels."""

    def __init__(
        self,
        network: Network,
        attention: PackedAttention,
        layout: ChunkLayout,
        step: FusedDeviceStep,
        kernels: FusedKernels,
    ) -> None:
        """step: whose weights the chunk goes through. kernels: with a workspace that no decode step has."""
        super().__init__(network, attention, layout, network.lm_head.weight.detach())
        self.few = ChunkLayers(step, attention, suited(kernels, step.layers[0], network.ranks))
        self.many = ChunkLayers(step, attention, by_library(kernels, step.layers[0], network.ranks))
        self.many.layers = [with_rounded_biases(layer) for layer in step.layers]
        if network.ranks.size == 1:  # products may add to the residual, which then is not read again for it
            add = partial(linear_into_residual, behind=self.many.layers[0].qkv)
            self.many.kernels = self.many.kernels._replace(linear_residual=add)
            self.many.layers = with_biases_so_far(self.many.layers)

    def __call__(self, numbers: Tensor) -> Tensor:
        is_few = self.layout.num_rows(numbers) <= MOST_ROWS
        layers = self.few if is_few else self.many
        logits = layers.chunk_logits if is_few else layers.last_logits
        inputs = self.layout.split(numbers)
        layers.begin_chunk(self.layout.rows_of(inputs))
        with named_range("labkit.prefill.forward"):
            return logits(inputs.token_ids, inputs.positions, inputs.last_rows)
