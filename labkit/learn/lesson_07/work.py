"""Lesson 07: engines beside each other, their work, costs and schedules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams, SchedulerConfig
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, OneTableBlockManager
from labkit.ladder import LADDER
from labkit.learn.gates.gate import raised
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions
from labkit.results import CostCardRecord, HostTime, counts_table
from labkit.results.cost_cards import DEVICE_ROWS
from labkit.watch import OperatorCounter, count_work, steady_decode, steady_prompts
from labkit.watch.blocks import PoolUse, block_places, pool_use
from labkit.watch.work import COUNTS

# --- cost cards, host time and recorded runs of its two rungs ------------------------------------------

CARD_ROWS = {  # counts of a cost card: their words in a table
    "aten_ops": "aten operators dispatched",
    **dict(
        zip(
            ("kernels", "h2d_copies", "h2d_bytes", "d2h_copies", "synchronizations"),
            (DEVICE_ROWS[i] for i in (0, 1, 2, 4, 5)),
            strict=True,
        )
    ),
}


def recorded_cards(record: CostCardRecord, rungs: Sequence[str], batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Counts of GPT-2's recorded decode step, with requests at differing positions, a column per batch size
    and rung."""
    cards = record.cards(lengths=(20, 23))
    return counts_table(
        {(f"B = {b}", f"rung {n}"): cards[n, b] for b in batch_sizes for n in rungs}, CARD_ROWS
    )


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a resident decode step's parts on the host: reserve, tell the device, launch and
    the rest."""
    return {
        "reserve": host.append_us,
        "tell the device": host.tables_us,
        "launch and the rest": host.rest_us,
    }


def savings(before: HostTime, after: HostTime, store_us: float) -> dict[str, float]:
    """Where the microseconds that rung 07 saves the host come from, of a step of rung 06 and one of rung 07.

    store_us: what the launch of one layer's store takes, recorded by itself.
    """
    saved = {part: us - step_parts(after)[part] for part, us in step_parts(before).items()}
    stores = before.num_layers * store_us
    return {
        "one table": saved["reserve"] + saved["tell the device"],
        f"{before.num_layers} stores": stores,
        "the rest, with begin": saved["launch and the rest"] - stores,
    }


def ladder_table(records: Mapping[str, dict], before: str, after: str) -> pd.DataFrame:
    """Two rungs in each of some records of `ladder`, a row per record, by label: median decode tokens per
    second, and how they compare."""
    rows = {}
    for label, record in records.items():
        compared = record.comparison(before, after, path="fused")
        rows[label] = {
            f"rung {before}": f"{record.rate(before):,.0f}",
            f"rung {after}": f"{record.rate(after):,.0f}",
            "of the limit": f"{100 * record.share_of_limit(after):.1f} %",
            "speed-up": f"×{compared.speedup:.3f}",
            "interval": str(compared.interval),
            "verdict": compared.verdict,
        }
    return pd.DataFrame(rows).T.rename_axis(columns="decode tokens/s, H100")


# --- the engines that its steps are counted on ---------------------------------------------------------

# Between the two rungs: one table, and still two kernels per layer.
HALFWAY = replace(LADDER["06"].options, layer_tables="shared")


GPT2_LAYERS = 12


def small_gpt2(n_layer: int = GPT2_LAYERS, n_positions: int = 64) -> LanguageModel:
    """A model with GPT-2's layers and heads, but narrow and with random weights, so that a step takes little
    time."""
    config = GPT2Config(256, n_positions, n_embd=96, n_layer=n_layer, n_head=12, tie_word_embeddings=False)
    gpt2 = random_network(config, seed=0)
    return LanguageModel(f"random: {n_layer} narrow layers", gpt2, WordTokenizer(config.vocab_size, None))


def sharing_engine(model: LanguageModel, options: EngineOptions, device: torch.device) -> InferenceEngine:
    """An engine with eight requests about to decode for the first time: they share the two blocks of their
    prompt with the prefix cache, and the second block is half full."""
    engine = InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=64),
        scheduler=SchedulerConfig(max_batch_size=8),
    )
    prompt = [1, 2, 3, 4, 5, 6]
    engine.generate([prompt], SamplingParams(max_new_tokens=1, stop_on_eos=False))  # fills the prefix cache
    for _ in range(8):
        engine.add_request(prompt, SamplingParams(max_new_tokens=12, stop_on_eos=False))
    engine.step()  # the prefill, which computes nothing: the prompt is known
    return engine


def schedule_engine(
    model: LanguageModel, options: EngineOptions, device: torch.device, max_blocks: int = 10
) -> InferenceEngine:
    """An engine for `eventful_schedule`: batches of 4, and `max_blocks` blocks of 4 tokens per layer, few
    enough that requests are preempted."""
    return InferenceEngine(
        model,
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=max_blocks),
        scheduler=SchedulerConfig(max_batch_size=4),
    )


# --- what a step, a copy and the bookkeeping cost, counted ---------------------------------------------

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


# --- requests that come, share and go, and whether the layers' tables ever differ ----------------------


def eventful_schedule(engine: InferenceEngine) -> Iterator[None]:
    """A generator that runs one step at a time, while requests join, share a prompt, copy, are preempted,
    cancelled and finish. Checks the engine's integrity after each."""
    generator = np.random.default_rng(0)
    ids: list[int] = []
    for step in range(60):
        if step % 4 == 0:
            prompt = [1, 2, 3, 4, 5, 6] if step % 8 else generator.integers(1, 200, 5).tolist()
            params = SamplingParams(max_new_tokens=int(generator.integers(4, 20)), stop_on_eos=False)
            ids.append(engine.add_request(prompt, params))
        if step == 30 and engine.scheduler.running:
            engine.cancel(next(iter(engine.scheduler.running)).request_id)
        engine.step()
        engine.check_integrity()
        yield


@dataclass(frozen=True)
class Agreement:
    """What a run of `eventful_schedule` showed: whether the tables of different layers ever differed, and
    what happened in it."""

    steps: int
    lists: int  # lists of block ids looked at, over all requests and steps
    different: int  # lists that name other places than layer 0's
    events: dict[str, int]
    uses: tuple[PoolUse, ...]


def run_schedule(engine: InferenceEngine) -> Agreement:
    """Run `eventful_schedule` to its end, and compare the tables of all layers after each step."""
    lists = different = 0
    uses = []
    for _ in eventful_schedule(engine):
        for session in engine.scheduler.running.values():
            first, *others = block_places(engine, session)
            lists += 1 + len(others)
            different += sum(other != first for other in others)
        uses.append(pool_use(engine))
    stats = engine.stats()
    tables = engine.kv_manager.num_tables
    events = {path: stats.append_paths.get(path, 0) // tables for path in ("boundary", "copy_on_write")}
    events |= {
        "preemptions": stats.counters.preemptions,
        "requests ended": sum(stats.counters.finished.values()),
    }
    return Agreement(len(uses), lists, different, events, tuple(uses))


# --- models whose layers hold different tokens ---------------------------------------------------------


def blocks_by_window(windows: Sequence[int | None], num_tokens: int, block_size: int) -> tuple[int, int]:
    """Blocks that a sequence needs in a model whose layers see only a window of tokens, summed over the
    layers: with a table per layer, and with one table for all layers. A window of None is the whole text; of
    0, a layer that uses another layer's keys and values."""
    each = []
    for window in windows:
        first = 0 if window is None else max(0, num_tokens - window) // block_size
        each.append(0 if window == 0 else -(-num_tokens // block_size) - first)
    return sum(each), len(each) * max(each)
