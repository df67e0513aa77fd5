"""Lesson 07: what a step, a copy and the bookkeeping cost, counted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import torch

from labkit.engine import InferenceEngine, InferenceSession, SamplingParams
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, OneTableBlockManager
from labkit.learn.gates.gate import raised
from labkit.learn.lesson_07.engines import GPT2_LAYERS, sharing_engine
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import OperatorCounter, count_work, steady_decode, steady_prompts
from labkit.watch.work import COUNTS

# The decode steps of `step_work`, in order.
STEPS = ("eight join, each copies the shared block", "nothing changes", "each needs a new block")


def step_work(
    model: LanguageModel, engines: Mapping[str, EngineOptions], device: torch.device
) -> pd.DataFrame:
    """What three decode steps of `sharing_engine` in a row ask of the block manager and the device, a row per
    step and kind of work, a column per engine; and the first engine's count over the last's."""
    first, *_, last = engines
    tables = {}
    running = {name: sharing_engine(model, options, device) for name, options in engines.items()}
    for step in STEPS:
        columns = {}
        for name, engine in running.items():
            with count_work(engine) as counts:
                engine.step()
            columns[name] = [counts[count] for count in COUNTS]
        table = pd.DataFrame(columns, index=list(COUNTS))
        ratios = [f"{a / b:.3g}" if b else "–" for a, b in zip(table[first], table[last], strict=True)]
        tables[step] = table.assign(**{"times less": ratios})
    return pd.concat(tables)[lambda rows: rows[first] > 0]


def reserved(engine: InferenceEngine) -> str:
    """What a decode step of 8 requests asks of the engine's block manager, a reader's, in words."""
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))), count_work(engine) as counts:
            engine.step()
    except Exception as error:  # whatever the reader's code raises
        return f"reservations: not counted, because the engine {raised(error)}"
    calls, lists, *_ = (counts[count] for count in COUNTS)
    return f"reserve_token_batch: called {calls} times in a step of 8 requests, {lists} lists looked at"


def manager_state(engine: InferenceEngine) -> dict[str, int]:
    """How much the block manager and the device hold now, for all running requests together, by name."""
    manager = engine.kv_manager
    sessions = engine.scheduler.running.values()
    lists = [ids for session in sessions for ids in session.block_ids_per_layer]
    return {
        "tokens in the cache": sum(session.num_tokens for session in sessions),
        "lists of block ids": len(lists),
        "block ids in them": sum(map(len, lists)),
        "block records": len(manager.block_infos),
        "reference counts": len(manager.block_refcounts),
        "numbers in the device's block tables": engine.decode_step.slots.block_tables.numel(),
        "bytes of the pool": manager.k_cache.nbytes + manager.v_cache.nbytes,
    }


MANAGERS = {"rung 06": MutableInfoBlockManager, "rung 07": OneTableBlockManager}


def copied_pool(kind: type[KVBlockManager], num_layers: int = GPT2_LAYERS) -> dict[str, int]:
    """What a copy-on-write takes, when a session appends behind a half-full block that it shares: calls,
    operators, and in how many layers the copy is right."""
    manager = kind(num_layers=num_layers, num_heads=2, head_dim=4, block_size=4, max_blocks_per_layer=4)
    numbers = torch.arange(num_layers * 2 * 2 * 4.0).view(num_layers, 2, 2, 4)  # [L, H, T, D]
    first = InferenceSession(manager)
    first.append_prompt(numbers, -numbers)
    second = first.fork()
    with OperatorCounter() as counter:
        for table_idx, block_ids in enumerate(second.block_ids_per_layer):
            manager.reserve_token_batch(table_idx, [block_ids])
    keys = [
        manager.dense_kv(layer, s.block_ids_per_layer[layer % manager.num_tables])[0][:, :2]
        for s in (first, second)
        for layer in range(num_layers)
    ]
    halves = zip(keys[:num_layers], keys[num_layers:], strict=True)
    return {
        "calls of reserve_token_batch": manager.num_tables,
        "operators dispatched": counter.operators,
        "layers whose copy is right": sum(torch.equal(a, b) for a, b in halves),
    }


def begin_operators(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> int:
    """Operators that the attention of a decode step dispatches before the first layer."""
    for prompt in prompts:
        engine.add_request(list(prompt), SamplingParams(max_new_tokens=4, stop_on_eos=False))
    engine.step()
    engine.step()
    slots, attention = engine.decode_step.slots, engine.decode_step.device_step.attention
    slot_mapping = slots.slot_mapping[: len(prompts)]
    with torch.inference_mode(), OperatorCounter() as counter:
        attention.begin(slots, slot_mapping, max(map(len, prompts)) + 1)
    return counter.operators


def copies_on_write(engine: InferenceEngine, prompt: Sequence[int], new_tokens: int) -> int:
    """Copies-on-write per table when eight requests decode `new_tokens` tokens each behind one cached
    prompt."""
    params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
    engine.generate([prompt], replace(params, max_new_tokens=1))
    before = engine.stats().append_paths.get("copy_on_write", 0)
    engine.generate([prompt] * 8, params)
    copies = engine.stats().append_paths.get("copy_on_write", 0) - before
    return copies // engine.kv_manager.num_tables
