"""The device's part of a decode step in few kernels (rung 09): five per layer, and five around them."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine.sampling import Draws
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import (
    HeadTransform,
    NormLinear,
    RowStatistics,
    embed_slots_plain,
    embed_slots_triton,
    fold_layer_norm,
    fold_rms_norm,
    greedy_advance_plain,
    greedy_advance_triton,
    linear_residual_plain,
    linear_residual_triton,
    norm_linear_plain,
    norm_linear_triton,
)
from labkit.kernels.library_linear import linear_residual_library, norm_linear_library
from labkit.kernels.linear_residual import make_split_k_workspace
from labkit.kernels.residual_sum import row_norm_triton
from labkit.kernels.tiles import LARGEST_HEAD, TILES, MeasuredTiles, head_tile
from labkit.model import LinearWeights, Network, NormWeights
from labkit.model.decoder_weights import LayerWeights, Rotary, split_heads
from labkit.model.ranks import Ranks
from labkit.ranges import named_range

# A layer's input or output [B, E], and the statistics of its rows if the product behind it reads them.
Rows = tuple[Tensor, RowStatistics | None]

NO_TILES = "none: the products are PyTorch's"
WIDE_LAYER = 50_000_000  # bytes of its weights: then they take the time, not what a launch waits

VOCABULARY_MULTIPLE = 64  # a product whose sides are multiples of it is several times faster than one odd one


class FusedKernels(NamedTuple):
    """The four kernels that a fused step is made of, as Triton kernels or as their plain-PyTorch twins."""

    embed: Callable[..., Rows]
    norm_linear: Callable[..., Tensor]
    linear_residual: Callable[..., Rows]
    greedy_advance: Callable[..., Tensor]

    @property
    def measured(self) -> MeasuredTiles | None:
        """The measured tiles that the products look into; None for kernels without tiles."""
        return getattr(self.norm_linear, "keywords", {}).get("measured")

    @property
    def prefetching(self) -> "FusedKernels":
        """These kernels, whose products ask for their weights while they wait; the plain ones do not wait."""
        if self.measured is None:
            return self
        return self._replace(
            norm_linear=partial(self.norm_linear, prefetch=True),
            linear_residual=partial(self.linear_residual, prefetch=True),
        )


PLAIN = FusedKernels(embed_slots_plain, norm_linear_plain, linear_residual_plain, greedy_advance_plain)
TRITON = FusedKernels(embed_slots_triton, norm_linear_triton, linear_residual_triton, greedy_advance_triton)


def triton_kernels(device: torch.device, measured: MeasuredTiles) -> FusedKernels:
    """The Triton kernels of a fused step, with measured tiles and a split-K workspace on the device.

    That is made once, because a CUDA graph remembers its address, and for one engine, because the steps of
    two engines may run at once.
    """
    workspace = make_split_k_workspace(device)
    return TRITON._replace(
        norm_linear=partial(norm_linear_triton, measured=measured),
        linear_residual=partial(linear_residual_triton, measured=measured, workspace=workspace),
    )


class FusedLayer(NamedTuple):
    """What the kernels of one layer read: two copies with the norm put in, and two of the model's own."""

    qkv: NormLinear
    attention_out: LinearWeights
    mlp_in: NormLinear
    mlp_out: LinearWeights
    transform: HeadTransform | None = None

    @property
    def products(self) -> tuple[NormLinear | LinearWeights, ...]:
        """The layer's four products, in their order."""
        return self.qkv, self.attention_out, self.mlp_in, self.mlp_out


def by_library(kernels: FusedKernels, layer: FusedLayer, ranks: Ranks) -> FusedKernels:
    """These kernels with PyTorch's products, for layers like this one. One that a sum over ranks follows is
    PyTorch's already. Where kernels run, what adds the residual makes the next norm, too."""
    product = linear_residual_library if ranks.size == 1 else kernels.linear_residual
    if kernels.measured is not None:
        product = partial(product, behind=layer.qkv)
    return kernels._replace(norm_linear=norm_linear_library, linear_residual=product)


def suited(kernels: FusedKernels, layer: FusedLayer, ranks: Ranks) -> FusedKernels:
    """These kernels for layers like this one; where it is wide, and nobody measured tiles for its products,
    with PyTorch's products, which lose less to the GPU's limit than tiles by rule do."""
    measured = kernels.measured
    if measured is None or sum(product.weight.nbytes for product in layer.products) < WIDE_LAYER:
        return kernels
    if any(product.weight.shape in measured or product.weight.shape in TILES for product in layer.products):
        return kernels
    return by_library(kernels, layer, ranks)


class FusedDeviceStep(DeviceStep):
    """A `DeviceStep` in few kernels (rung 09).

    Norms, biases, GELU or a gate, rotation, residual and the slots' advance are parts of kernels that run
    anyway, and the vocabulary is padded to a size that the hardware likes.
    """

    attention: AttendAndWrite

    watch_points: ClassVar[tuple[str, ...]] = ("kernels", "layer")

    can_hold: ClassVar[bool] = False  # its products' tiles
    asks_early = False  # whether its products ask for their weights while they wait

    def __init__(
        self, slots: DeviceSlots, network: Network, attention: AttendAndWrite, kernels: FusedKernels
    ) -> None:
        super().__init__(slots, network, attention)
        weights = network.decoder_weights()
        self._tables = weights.token_table, weights.position_table
        self.layers = [
            FusedLayer(
                folded(layer.attention_norm, layer.qkv),
                layer.attention_out,
                folded(layer.mlp_norm, layer.mlp_in, weights.is_gated),
                layer.mlp_out,
                head_transform(layer, weights.rotary),
            )
            for layer in weights.layers
        ]
        self.kernels = suited(kernels, self.layers[0], network.ranks)
        self._heads = network.config.num_heads, network.config.num_kv_heads
        self._vocab_size = network.config.vocab_size
        self.head = folded(weights.final_norm, LinearWeights(padded_head(weights.head), None))
        self.library_head = with_rounded_bias(self.head)

    @property
    def tiles(self) -> str:
        """Where the tiles of a layer's four products come from, in words."""
        measured, products = self.kernels.measured, self.layers[0].products
        if measured is None:
            return NO_TILES
        num_measured = sum(p.weight.shape in measured or p.weight.shape in TILES for p in products)
        others = ", the others' by rule" if num_measured < len(products) else ""
        return f"measured for {num_measured} of {len(products)} products{others}"

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        with named_range("labkit.model.forward"):
            logits = self.next_logits(slot_mapping, max_context_len)
        with named_range("labkit.sample"):
            if draws == Draws.NONE:
                return self.take_likeliest(logits, slot_mapping)
            return self.draw_and_advance(logits, slot_mapping, draws)

    def take_likeliest(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        if self.tell_logits is not None:
            self.tell_logits(logits)
        slots = self.slots
        return self.kernels.greedy_advance(logits, slot_mapping, slots.last_token_ids, slots.context_lens)

    def next_logits(self, slot_mapping: Tensor, max_context_len: int) -> Tensor:
        """Logits [B, V] of the next tokens of the slots in slot_mapping [B]."""
        if len(slot_mapping) > 1 or not self.has_head_kernel:
            return self.logits(self.through_layers(slot_mapping, max_context_len))
        x, statistics = self.layer_by_layer(slot_mapping, max_context_len)
        tile = head_tile(x.shape[1], x.element_size())
        return self.gathered(self.kernels.norm_linear(x, statistics, self.head, tile=tile))

    @property
    def has_head_kernel(self) -> bool:
        """Whether one row's head is a kernel of ours, which begins while the last layer ends."""
        return self.kernels.measured is not None and len(self.head.weight) <= LARGEST_HEAD

    def through_layers(self, slot_mapping: Tensor, max_context_len: int) -> Tensor:
        """The last layer's output [B, E] for the next tokens of the slots in slot_mapping [B]."""
        return self.layer_by_layer(slot_mapping, max_context_len)[0]

    def layer_by_layer(self, slot_mapping: Tensor, max_context_len: int) -> Rows:
        """`through_layers`, with the statistics of the output's rows."""
        self.attention.begin(self.slots, slot_mapping, max_context_len)
        x, statistics = self.embedded(slot_mapping)
        for layer_idx in range(len(self.layers)):
            x, statistics = self.layer(layer_idx, x, statistics)
        return x, statistics

    def embedded(self, slot_mapping: Tensor) -> Rows:
        """The first layer's input [B, E], with the statistics of its rows."""
        slots = self.slots
        return self.kernels.embed(slot_mapping, slots.last_token_ids, slots.context_lens, *self._tables)

    def logits(self, x: Tensor) -> Tensor:
        """The final norm and the head: logits [B, V] for the last layer's output x [B, E]."""
        on_triton = self.kernels.measured is not None
        statistics = row_norm_triton(x, None, self.library_head) if on_triton else None
        return self.gathered(norm_linear_library(x, statistics, self.library_head))

    def gathered(self, logits: Tensor) -> Tensor:
        """Logits [B, V] of the whole vocabulary, from those of each rank, without the pads."""
        return self.network.ranks.gather(logits)[:, : self._vocab_size]

    def layer(self, layer_idx: int, x: Tensor, statistics: RowStatistics | None) -> Rows:
        """One layer's output for its input x [B, E], each with the statistics of its rows."""
        layer, kernels = self.layers[layer_idx], self.kernels
        attended = self.attend(layer_idx, kernels.norm_linear(x, statistics, layer.qkv))
        x, statistics = kernels.linear_residual(attended, *layer.attention_out, x)
        inner = kernels.norm_linear(x, statistics, layer.mlp_in, gelu=not layer.mlp_in.is_gated)
        return kernels.linear_residual(inner, *layer.mlp_out, x)

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        """Attention [B, H * D] of one layer for its queries, keys and values [B, (H + 2 * G) * D], which are
        stored."""
        heads = split_heads(qkv, *self._heads)
        return self.attention.attend_heads(layer_idx, *heads, self.layers[layer_idx].transform).flatten(1)


def padded_head(head: Tensor) -> Tensor:
    """A copy of the head [V, E] with rows of zeros behind it, up to a multiple of VOCABULARY_MULTIPLE."""
    return F.pad(head, (0, 0, 0, -len(head) % VOCABULARY_MULTIPLE))


def folded(norm: NormWeights, linear: LinearWeights, is_gated: bool = False) -> NormLinear:
    """The product behind a norm, with the norm's weight and bias put into copies of its own."""
    if norm.bias is None:
        return fold_rms_norm(norm.weight, norm.eps, *linear, is_gated)
    return fold_layer_norm(norm.weight, norm.bias, norm.eps, *linear)


def with_rounded_bias(product: NormLinear) -> NormLinear:
    """The product with its bias in its weight's dtype, which PyTorch's products take without a copy."""
    return product if product.bias is None else product._replace(bias=product.bias.to(product.weight.dtype))


def head_transform(layer: LayerWeights, rotary: Rotary | None) -> HeadTransform | None:
    """What becomes of a layer's queries and keys before they meet; None for nothing."""
    if rotary is None:
        return None
    if layer.query_norm is None or layer.key_norm is None:
        return HeadTransform(*rotary)
    return HeadTransform(*rotary, layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.eps)
