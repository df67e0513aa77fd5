"""Lesson 15: a step with a mistake."""

from torch import Tensor

from labkit.engine.step.lanes import LanedDeviceStep
from labkit.model.decoder_weights import split_heads


class DealtOut(LanedDeviceStep):
    """Query head h reads head h % G of the keys, and not head h // (H / G)."""

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        config = self.network.config
        query, key, value = split_heads(qkv, config.num_heads, config.num_kv_heads)
        G, transform = key.shape[1], self.layers[layer_idx].transform
        dealt = query.unflatten(1, (-1, G)).transpose(1, 2).flatten(1, 2)  # each head beside its key's others
        out = self.attention.attend_heads(layer_idx, dealt, key, value, transform)
        return out.unflatten(1, (G, -1)).transpose(1, 2).flatten(1)
