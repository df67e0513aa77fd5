"""What is off in an engine's cache: the records of its blocks, and the keys and values in them."""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.kvcache import BlockHolder
from labkit.learn.gates.schedule import Invariant
from labkit.model import Network

TOLERANCE = 1e-3  # of keys and values, which a prefill and a decode step sum in another order


def held_by(engine: InferenceEngine) -> Iterator[tuple[str, BlockHolder, tuple[int, ...]]]:
    """Who holds blocks, running requests and then cached prefixes: the name, the holder, and all tokens of
    the text up to the blocks' end."""
    for request, session in engine.scheduler.running.items():
        yield f"request {request.request_id}", session, tuple(request.token_ids[: session.num_tokens])
    for entry in engine.prefix_cache or ():
        yield f"the cached prompt {list(entry.token_ids)}", entry, entry.text


def wrong_record(engine: InferenceEngine) -> str:
    """The first block whose record does not say what its place in a sequence makes of it."""
    manager = engine.kv_manager
    for name, holder, _ in held_by(engine):
        for layer_idx, block_ids in enumerate(holder.block_ids_per_layer):
            if len(block_ids) != (needed := manager.blocks_for(holder.num_tokens)):
                return (
                    f"layer {layer_idx}, {name} holds the blocks {block_ids} for {holder.num_tokens} tokens, "
                    f"expected {needed} of {manager.block_size} slots."
                )
            for place, block_id in enumerate(block_ids):
                start = place * manager.block_size  # in these blocks
                expected = {
                    "layer": layer_idx,
                    "block_index": block_id - manager.layer_offset(layer_idx),
                    "start": holder.start + start,
                    "length": min(manager.block_size, holder.num_tokens - start),
                }
                info = manager.info(block_id)
                for field, value in expected.items():
                    if getattr(info, field) != value:
                        return (
                            f"layer {layer_idx}, {name}, block {block_id} (place {place}): {field} is "
                            f"{getattr(info, field)}, expected {value}."
                        )
    return ""


def wrong_number(engine: InferenceEngine) -> str:
    """The first token whose key or value in the cache is not what the model makes of it."""
    manager = engine.kv_manager
    for name, holder, token_ids in held_by(engine):
        for layer_idx in range(manager.num_layers):
            block_ids = holder.block_ids_per_layer[layer_idx % manager.num_tables]
            with torch.inference_mode():
                stored = manager.dense_kv(layer_idx, block_ids)
            made = keys_and_values(engine.model.network, token_ids)
            for noun, have, all_made in zip(("key", "value"), stored, made, strict=True):
                difference = (have - all_made[layer_idx, :, holder.start :]).abs()  # [H, T, D]
                is_off = ~(difference <= TOLERANCE).all(dim=2).all(dim=0)  # NaN is, too
                for token in is_off.nonzero().flatten().tolist():
                    block_id, slot = block_ids[token // manager.block_size], token % manager.block_size
                    return (
                        f"layer {layer_idx}, {name}, token {token} (slot {slot} of block {block_id}): its "
                        f"{noun} there is {whose(have[:, token], engine)}, expected the {noun} of {name}'s "
                        f"token {token} in layer {layer_idx}."
                    )
    return ""


@lru_cache(maxsize=256)
@torch.inference_mode()
def keys_and_values(network: Network, token_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A text's keys and values, each [L, H, T, D], from one prefill of all of it."""
    input_ids = torch.tensor([token_ids], device=network.device)
    prefilled = network.prefill(input_ids, torch.tensor([len(token_ids)], device=network.device))
    return prefilled.keys[:, 0], prefilled.values[:, 0]


def whose(found: Tensor, engine: InferenceEngine) -> str:
    """In words, what was found in a slot, [H, D]: zeros, or a key or value of someone's, if any."""
    if not found.any():
        return "zeros"
    for name, _, token_ids in held_by(engine):
        made_of = keys_and_values(engine.model.network, token_ids)
        for noun, made in zip(("key", "value"), made_of, strict=True):
            same = ((made - found[:, None]).abs() <= TOLERANCE).all(dim=3).all(dim=1).nonzero()  # [L, T]
            if len(same):
                layer_idx, token = same[0].tolist()
                return f"the {noun} of {name}'s token {token} in layer {layer_idx}"
    first_two = [round(number, 2) for number in found.flatten()[:2].tolist()]
    return f"none of any request that runs, beginning with {first_two}"


TRUE_RECORDS = Invariant(
    "a block's record says where it is, where it begins and how full it is",
    wrong_record,
    "Every block has a record of its own, a copy's too; each token is counted once, in every layer, after "
    "its write.",
)
STORED = Invariant(
    "the cache holds each token's own key and value",
    wrong_number,
    "Row b of a layer's keys and of its values goes behind request b's last token, in that layer. What is in "
    "a block is copied before the write, not after.",
)
