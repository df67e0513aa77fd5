"""Engines whose drafts are known, and the places at which a step that verifies them can fail."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from helpers import tokens_alone

from labkit import InferenceEngine
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import BLOCK_PREFIX_CACHE

NGRAMS = replace(BLOCK_PREFIX_CACHE, speculation="ngrams")
REPEATED = [(1, 2, 3, 1, 2, 3), (7, 8) * 5, tuple(range(20, 30)) * 2, (5,) * 4, (9, 4, 7)]

PLACES = {
    "making room": lambda engine: (engine.kv_manager, "reserve_prompt"),
    "telling the device": lambda engine: (engine.decode_step.slots, "update"),
    "sending texts": lambda engine: (engine.readback.verify_step, "_send_bounds"),
    "finding drafts": lambda engine: (engine.readback.verify_step.device_step, "find_drafts"),
    "when the device has done it all": lambda e: (e.readback.verify_step._pinned_tokens, "start_copy"),
    "reading": lambda engine: (TokenCopy, "read"),
}


def drafting(engine: InferenceEngine, texts: Sequence[tuple[int, ...]], wrong_at: int = 99) -> None:
    """Have the engine draft how these texts go on, but for the draft at one place, which is wrong."""

    def find_drafts(rows, context_lens, slot_mapping, limits, num_drafts):
        drafts = torch.full((len(slot_mapping), num_drafts), -1)
        for b, (slot, limit) in enumerate(zip(slot_mapping.tolist(), limits.tolist(), strict=True)):
            so_far = tuple(rows[slot, : context_lens[slot] + 1].tolist())
            for text in texts:
                if text[: len(so_far)] == so_far:
                    rest = torch.tensor(text[len(so_far) :][: min(limit, num_drafts)], dtype=torch.int64)
                    drafts[b, : len(rest)] = rest
                    drafts[b, wrong_at : wrong_at + 1] += (drafts[b, wrong_at : wrong_at + 1] >= 0) * 1
        return drafts % 256 * (drafts >= 0) - 1 * (drafts < 0)

    engine.readback.verify_step.device_step.find_drafts = find_drafts
    engine.readback.repeats = lambda request: True


def texts_of(prompts, params) -> list[tuple[int, ...]]:
    return [(*prompt, *tokens_alone(prompt, params)) for prompt in prompts]
