"""Lesson 00: what a wrong attention may have done, each computed, so that its result can be recognized."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from labkit.learn.lesson_00.pieces import Weights, paged_attention
from labkit.learn.lesson_00.probe import Probe


class Suspect(NamedTuple):
    """A mistake: the sentences that tell it, and the attention [B, H, D] that it makes of a probe."""

    told: str  # {D} stands for the size of a head
    attend: Callable[[Probe], Tensor]


def by_hand(probe: Probe) -> Tensor:
    """The right attention of a probe, [B, H, D]."""
    return paged_attention()(**vars(probe))


def with_weights(probe: Probe, weights: Weights) -> Tensor:
    """The attention whose weights these are."""
    return paged_attention(weights=weights)(**vars(probe))


def over_root_of_length(query: Tensor, keys: Tensor) -> Tensor:
    """Weights [T] whose scores are divided by the root of the number of tokens."""
    return (keys @ query / len(keys) ** 0.5).softmax(0)


def without_exp(query: Tensor, keys: Tensor) -> Tensor:
    """Weights [T] that are scores divided by their sum."""
    scores = keys @ query
    return scores / scores.sum()


def without_exp_below_the_largest(query: Tensor, keys: Tensor) -> Tensor:
    """The same, of what is left when the largest score is subtracted."""
    scores = keys @ query
    below = scores - scores.max()
    return below / below.sum()


def scaled(probe: Probe, factor: float) -> Tensor:
    """The attention whose scores are multiplied by a factor too many."""
    return by_hand(replace(probe, query=factor * probe.query))


def of_one_head(probe: Probe, *names: str) -> Tensor:
    """The attention in which all heads have head 0's part of these tensors."""
    tensors = {name: getattr(probe, name) for name in names}
    return by_hand(replace(probe, **{name: t[:, :1].expand_as(t) for name, t in tensors.items()}))


SCALE = "a score is query · key / √D: "
SOFTMAX = "weights are a softmax: exp() was forgotten. "
OWN = "the new token has a key and a value of its own: "
SUSPECTS = (
    Suspect(
        SCALE + "the scores were not divided by √D. D is the size of a head, {D} here.",
        lambda probe: scaled(probe, probe.query.shape[2] ** 0.5),
    ),
    Suspect(
        SCALE + "the scores were divided by D, which is {D} here, in place of its square root.",
        lambda probe: scaled(probe, probe.query.shape[2] ** -0.5),
    ),
    Suspect(
        SCALE + "the scores were divided by the root of the number of tokens. D is the size of a head, {D}.",
        lambda probe: with_weights(probe, over_root_of_length),
    ),
    Suspect(
        SCALE + "the scores were multiplied by √D, not divided. D is the size of a head, {D} here.",
        lambda probe: scaled(probe, probe.query.shape[2]),
    ),
    Suspect(
        SCALE
        + "all tokens of a text have the same weight. How well its key fits the query decides a weight.",
        lambda probe: scaled(probe, 0),
    ),
    Suspect(
        SOFTMAX + "The scores were divided by their sum: take exp() of each first.",
        lambda probe: with_weights(probe, without_exp),
    ),
    Suspect(
        SOFTMAX + "When the largest score is subtracted, take exp() of each, and then divide by the sum.",
        lambda probe: with_weights(probe, without_exp_below_the_largest),
    ),
    Suspect(
        "values are added up: keys were. A key decides how much its token counts; its value is added.",
        lambda probe: by_hand(replace(probe, value_new=probe.key_new, v_cache_layer=probe.k_cache_layer)),
    ),
    Suspect(
        "a score compares the query with a key: it was compared with the value.",
        lambda probe: by_hand(replace(probe, key_new=probe.value_new, k_cache_layer=probe.v_cache_layer)),
    ),
    Suspect(
        OWN + "its key stands for its value. Behind the values of the text comes value_new.",
        lambda probe: by_hand(replace(probe, value_new=probe.key_new)),
    ),
    Suspect(
        OWN + "its value stands for its key. Behind the keys of the text comes key_new.",
        lambda probe: by_hand(replace(probe, key_new=probe.value_new)),
    ),
    Suspect(
        OWN + "they are swapped. key_new comes behind the keys of the text, value_new behind its values.",
        lambda probe: by_hand(replace(probe, key_new=probe.value_new, value_new=probe.key_new)),
    ),
    Suspect(
        "each head has its own keys: head 0's were used for all.",
        lambda probe: of_one_head(probe, "key_new", "k_cache_layer"),
    ),
    Suspect(
        "each head has its own query: head 0's was used for all.",
        lambda probe: of_one_head(probe, "query"),
    ),
    Suspect(
        "each head has its own result: the last head's is in the place of all. Write out[b, h], not out[b].",
        lambda probe: by_hand(probe)[:, -1:].expand_as(probe.query),
    ),
)
