"""Lesson 15: steps with a mistake each, and a mistake that is none."""

import copy

from torch import Tensor

from labkit.engine.step.lanes import LanedDeviceStep
from labkit.model import LanguageModel
from labkit.model.decoder_weights import Rotary, split_heads
from labkit.model.llama import Llama


def one_further(angles: Rotary) -> Rotary:
    """The angles of the next position, for each."""
    return Rotary(*(table.roll(-1, 0) for table in angles))


def heads_of(step: LanedDeviceStep) -> tuple[int, int]:
    """Heads of queries, and of keys, in the model of a step."""
    config = step.network.config
    return config.num_heads, config.num_kv_heads


class OneTooFar(LanedDeviceStep):
    """A decode step rotates by the angles of the next position; prompts are right."""

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        transform = self.layers[layer_idx].transform
        assert transform is not None and transform.cos is not None and transform.sin is not None
        cos, sin = one_further(Rotary(transform.cos, transform.sin))
        further = transform._replace(cos=cos, sin=sin)
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


class OneFurther(Llama):
    """A Llama in which every position, a prompt's too, has the angles of the next one."""

    def rotary(self) -> Rotary:
        return one_further(super().rotary())


def all_one_further(model: LanguageModel) -> LanguageModel:
    """A copy of a Llama, as a `OneFurther`."""
    moved = copy.deepcopy(model)
    moved.network.__class__ = OneFurther
    return moved
