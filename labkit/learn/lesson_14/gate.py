"""Lesson 14: blocks that are found by what they hold, kept once, and let go from the end."""

import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.cached import first_difference, keys_and_values
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import Invariant
from labkit.learn.lesson_14.entries import (
    equal_blocks_are_not_mixed,
    full_blocks_are_kept,
    others_stay,
    texts_are_not_mixed,
)
from labkit.learn.lesson_14.eviction import ends_go_first, least_recent_goes_first, what_is_used_stays
from labkit.learn.lesson_14.lookup import keys_stand_for_texts, longest_run_is_found
from labkit.learn.lesson_14.played_cache import BLOCK_SIZE

SYSTEM = tuple(range(40, 52))  # three blocks
COMPUTED = "what texts begin with is computed once"


def shared_parts_are_computed_once(build: Build) -> None:
    """Raise BrokenContract if requests compute what those before them have computed."""
    cache = CacheConfig(BLOCK_SIZE, 40)
    engine = build(small_model(), dtype=torch.float32, cache=cache)
    asks = [(*SYSTEM, 60 + i, 70, 80) for i in range(4)]
    for number, prompt in enumerate(asks):
        check_computed(engine, prompt, 1, 3 if number else 15, f"question {number} behind a system prompt")
    text = check_computed(engine, (1, 2, 3, 4, 5, 6), 9, 6, "the first turn of a conversation")
    check_computed(engine, (*text, 7, 8, 9), 1, 6, "its second turn, behind 9 new tokens")


def check_computed(
    engine: InferenceEngine, prompt: tuple[int, ...], num_new: int, expected: int, what: str
) -> tuple[int, ...]:
    """The text of a request. Raises BrokenContract unless it computes so many tokens of its prompt."""
    before = engine.stats().counters.prefill_tokens
    (completion,) = engine.generate([prompt], SamplingParams(num_new, stop_on_eos=False))
    computed = engine.stats().counters.prefill_tokens - before
    if computed != expected:
        raise BrokenContract(
            f"{COMPUTED}: of {what} ({len(prompt)} tokens, blocks of {BLOCK_SIZE}) {computed} tokens are "
            f"computed, expected {expected}."
        )
    return (*prompt, *completion.token_ids)


def wrong_text(engine: InferenceEngine) -> str:
    """The first entry whose block does not hold the keys and values of its text."""
    manager = engine.kv_manager
    last_layer = manager.num_layers - 1  # its keys depend on all tokens before
    for entry in engine.prefix_cache or ():
        with torch.inference_mode():
            stored = manager.dense_kv(last_layer, entry.block_ids_per_layer[0])
        for have, made in zip(stored, keys_and_values(engine.model.network, tuple(entry.text)), strict=True):
            wanted = made[last_layer, :, entry.start :]
            if have.shape != wanted.shape or first_difference(have, wanted) is not None:
                return (
                    f"block {entry.block_ids_per_layer[0][0]}, cached for {list(entry.text)} from token "
                    f"{entry.start} on, has keys or values of something else."
                )
    return ""


def lost_entry(engine: InferenceEngine) -> str:
    """The first entry that no lookup finds: one before it is not there."""
    texts = {tuple(entry.text) for entry in engine.prefix_cache or ()}
    for entry in engine.prefix_cache or ():
        before = tuple(entry.text[: entry.start])
        if before and before not in texts:
            return f"the entry of {list(entry.text)} is there, and none of {list(before)}."
    return ""


GATE = Gate(
    ("prefixes",),
    LADDER["13"].options,
    invariants=(
        Invariant(
            "an entry's block holds its own text",
            wrong_text,
            "Only what is written is kept, in its own block.",
        ),
        Invariant("every entry can be found", lost_entry, "A block goes after those that follow it."),
    ),
    trials=(
        keys_stand_for_texts,
        longest_run_is_found,
        texts_are_not_mixed,
        equal_blocks_are_not_mixed,
        full_blocks_are_kept,
        others_stay,
        ends_go_first,
        least_recent_goes_first,
        what_is_used_stays,
        shared_parts_are_computed_once,
    ),
)
