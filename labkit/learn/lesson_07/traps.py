"""Lesson 07: a reservation that is wrong on purpose, and calls that fail."""

from contextlib import suppress

import torch

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams
from labkit.errors import OutOfBlocksError
from labkit.kvcache import OneTableBlockManager
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import PlantedError, count_forwards, planted_failure

# --- a reservation that is wrong on purpose ------------------------------------------------------------


class ForgetsTheCopy(OneTableBlockManager):
    """Makes room without a look at who else holds a block: a new block when the last one is full, and no copy
    of one that is shared."""

    def reserve_token_batch(self, table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
        """Make room for one more token behind each sequence; returns which of the lists changed."""
        changed = []
        for b, block_ids in enumerate(block_ids_list):
            if self.num_tokens(block_ids) == len(block_ids) * self.block_size:
                self.ready_block(table_idx, block_ids)
                changed.append(b)
            self.info(block_ids[-1]).length += 1
        return changed


# --- a reservation that fails, and a step that does ----------------------------------------------------


def fail_to_reserve(model: LanguageModel, options: EngineOptions, device: torch.device) -> dict[str, object]:
    """What a decode step of two requests costs and leaves behind when one block is missing. The step is asked
    for without the engine, which would make room first."""
    engine = InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=8, prefix_cache=False),
    )
    for prompt in ([1, 2, 3, 4], [5, 6, 7, 8]):
        engine.add_request(prompt, SamplingParams(max_new_tokens=8, stop_on_eos=False))
    engine.step()  # the prefill: both blocks are full
    manager, running = engine.kv_manager, engine.scheduler.running
    taken = InferenceSession(manager)  # all but one of the free blocks
    c = model.config
    nothing = torch.zeros(c.n_layer, c.n_head, 4 * (manager.num_free_blocks - 1), c.head_dim, device=device)
    taken.append_prompt(nothing, nothing)
    holders = [*running.values(), taken]
    free = manager.num_free_blocks
    with count_forwards(engine) as counts:
        try:
            engine.decode_step.next_tokens(running)
            raised = "nothing"
        except OutOfBlocksError:
            raised = "OutOfBlocksError"
    manager.check_integrity(holders)
    tokens = {manager.num_tokens(ids) for s in running.values() for ids in s.block_ids_per_layer}
    return {
        "raised": raised,
        "forwards thrown away": counts["forward"],
        "free blocks before, after": (free, manager.num_free_blocks),
        "tokens of a request, all tables": sorted(tokens),
    }


def fail_the_forward(engine: InferenceEngine) -> dict[str, list[int]]:
    """Let the engine's next decode step fail when the device is asked for it. Returns the tokens that the
    manager counts for each running request, and those that its session counts: at the failure, and after the
    engine has handled it."""
    step, manager = engine.decode_step, engine.kv_manager
    sessions = list(engine.scheduler.running.values())
    seen: dict[str, list[int]] = {}

    def look(when: str) -> None:
        seen[f"booked {when}"] = [manager.num_tokens(s.block_ids_per_layer[0]) for s in sessions]
        seen[f"counted {when}"] = [s.num_tokens for s in sessions]

    fault = planted_failure(step, "device_step", look=lambda: look("when it fails"))
    with suppress(PlantedError), fault:
        engine.step()
    look("afterwards")
    return seen
