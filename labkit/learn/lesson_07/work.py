"""Lesson 07: engines beside each other, their work, costs and schedules."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.kvcache import OneTableBlockManager
from labkit.ladder import LADDER
from labkit.learn.gates.gate import raised
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions
from labkit.results import HostTime
from labkit.watch import noting, replaced, steady_decode, steady_prompts
from labkit.watch.blocks import block_places


def savings(before: HostTime, after: HostTime, store_us: float) -> dict[str, float]:
    """Where the microseconds that rung 07 saves the host come from, of a step of rung 06 and one of rung 07.

    store_us: what the launch of one layer's store takes, recorded by itself.
    """
    stores = before.num_layers * store_us
    return {
        "one table": before.append_us - after.append_us + before.tables_us - after.tables_us,
        f"{before.num_layers} stores": stores,
        "the rest, with look-ups": before.rest_us - after.rest_us - stores,
    }


# Between the two rungs: one table, and still two kernels per layer.
HALFWAY = replace(LADDER["06"].options, layer_tables="shared")


def small_gpt2() -> LanguageModel:
    """A model with GPT-2's layers and heads, but narrow and with random weights, so that a step is quick."""
    config = GPT2Config(256, 64, n_embd=96, n_layer=12, n_head=12, tie_word_embeddings=False)
    tokenizer = WordTokenizer(config.vocab_size, None)
    return LanguageModel("random: 12 narrow layers", random_network(config, seed=0), tokenizer)


def schedule_engine(
    model: LanguageModel, options: EngineOptions, device: torch.device, max_blocks: int = 10
) -> InferenceEngine:
    """An engine for `eventful_schedule`, with so few blocks of 4 tokens that requests are preempted."""
    return InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=max_blocks),
        scheduler=SchedulerConfig(max_batch_size=4),
    )


def reserved(engine: InferenceEngine) -> str:
    """What a decode step of 8 requests asks of the engine's block manager, a reader's, in words."""
    lists: list[int] = []  # that were looked at, by call

    def on_reserve(_: int, block_ids_list: Sequence[list[int]]) -> None:
        lists.append(len(block_ids_list))

    watching = replaced(engine.kv_manager, "reserve_token_batch", noting(on_reserve))
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))), watching:
            engine.step()
    except Exception as error:  # whatever the reader's code raises
        return f"reservations: not counted, because the engine {raised(error)}"
    often = "once" if len(lists) == 1 else f"{len(lists)} times"
    return f"reserve_token_batch: called {often} in a step of 8 requests, {sum(lists)} lists looked at"


NUM_STEPS = 60


def eventful_schedule(engine: InferenceEngine) -> Iterator[None]:
    """A generator that runs one step at a time, while requests join, share a prompt, copy, are preempted,
    cancelled and finish. Checks the engine's integrity after each."""
    generator = np.random.default_rng(0)
    for step in range(NUM_STEPS):
        if step % 4 == 0:
            prompt = [1, 2, 3, 4, 5, 6] if step % 8 else generator.integers(1, 200, 5).tolist()
            params = SamplingParams(max_new_tokens=int(generator.integers(4, 20)), stop_on_eos=False)
            engine.add_request(prompt, params)
        if step == 30 and engine.scheduler.running:
            engine.cancel(next(iter(engine.scheduler.running)).request_id)
        engine.step()
        engine.check_integrity()
        yield


def run_schedule(engine: InferenceEngine) -> tuple[dict[str, int], int, int]:
    """Run `eventful_schedule` to its end, and compare the tables of all layers after each step.

    Returns what happened, how many lists of block ids were looked at, over all requests and steps, and how
    many of them name other places than layer 0's.
    """
    lists = different = 0
    for _ in eventful_schedule(engine):
        for session in engine.scheduler.running.values():
            first, *others = block_places(engine, session)
            lists += 1 + len(others)
            different += sum(other != first for other in others)
    stats, num_tables = engine.stats(), engine.kv_manager.num_tables
    events = {path: stats.append_paths.get(path, 0) // num_tables for path in ("boundary", "copy_on_write")}
    events["preemptions"] = stats.counters.preemptions
    events["requests ended"] = sum(stats.counters.finished.values())
    return events, lists, different


def blocks_by_window(windows: Sequence[int | None], num_tokens: int, block_size: int) -> tuple[int, int]:
    """Blocks that a sequence needs in a model whose layers see only a window of tokens, summed over the
    layers: with a table per layer, and with one table for all layers. A window of None is the whole text; of
    0, a layer that uses another layer's keys and values."""
    each = []
    for window in windows:
        first = 0 if window is None else max(0, num_tokens - window) // block_size
        each.append(0 if window == 0 else -(-num_tokens // block_size) - first)
    return sum(each), len(each) * max(each)


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
            self.block_infos[block_ids[-1]].length += 1
        return changed
