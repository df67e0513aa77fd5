"""Lesson 15: steps with a mistake each."""

from torch import Tensor

from labkit.engine.step.lanes import LanedDeviceStep
from labkit.model.decoder_weights import split_heads


def heads_of(step: LanedDeviceStep) -> tuple[int, int]:
    """Heads of queries, and of keys, in the model of a step."""
    config = step.network.config
    return config.num_heads, config.num_kv_heads


class OneTooFar(LanedDeviceStep):
    """A decode step rotates by the angles of the next position; prompts are right."""

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        transform = self.layers[layer_idx].transform
        assert transform is not None and transform.cos is not None and transform.sin is not None
        further = transform._replace(cos=transform.cos.roll(-1, 0), sin=transform.sin.roll(-1, 0))
        heads = split_heads(qkv, *heads_of(self))
        return self.attention.attend_heads(layer_idx, *heads, further).flatten(1)


class DealtOut(LanedDeviceStep):
    """Query head h reads head h % G of the keys, and not head h // (H / G)."""

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        query, key, value = split_heads(qkv, *heads_of(self))
        G, transform = key.shape[1], self.layers[layer_idx].transform
        dealt = query.unflatten(1, (-1, G)).transpose(1, 2).flatten(1, 2)  # each head beside its key's others
        out = self.attention.attend_heads(layer_idx, dealt, key, value, transform)
        return out.unflatten(1, (G, -1)).transpose(1, 2).flatten(1)
