"""Lesson 07: the bookkeeping with one table and with one per layer, failed reservations and steps, the places
that a kernel's programs read and write, recorded figures, and the exercises."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from labkit.bench import host_engine, in_turn, time_host_steps
from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams, SchedulerConfig
from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, OneTableBlockManager
from labkit.ladder import LADDER
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract, Case, Exercise, check_unchanged
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions
from labkit.results import Comparison, CostCard, CostCardRecord, HostTime, counts_table
from labkit.results.cost_cards import DEVICE_ROWS
from labkit.watch import OperatorCounter, PlantedError, count_forwards, count_work, planted_failure
from labkit.watch.blocks import PoolUse, block_places, pool_use
from labkit.watch.work import COUNTS

# Between the two rungs: one table, and still two kernels per layer.
HALFWAY = replace(LADDER["06"].options, layer_tables="shared")
GPT2_LAYERS = 12


# --- a model of GPT-2's depth, and what a step asks of the block manager -----------------------------------


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


# --- all layers agree ---------------------------------------------------------------------------------------


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


# --- a reservation that fails, and a step that does --------------------------------------------------------


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


def copies_on_write(engine: InferenceEngine, prompt: Sequence[int], new_tokens: int) -> int:
    """Copies-on-write per table when eight requests decode `new_tokens` tokens each behind one cached
    prompt."""
    params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
    engine.generate([prompt], replace(params, max_new_tokens=1))
    before = engine.stats().append_paths.get("copy_on_write", 0)
    engine.generate([prompt] * 8, params)
    copies = engine.stats().append_paths.get("copy_on_write", 0) - before
    return copies // engine.kv_manager.num_tables


# --- who reads what a program writes ------------------------------------------------------------------------

Place = tuple[int, int]  # a block and a slot in it


def places_touched(
    tables: Sequence[Sequence[int]], context_lens: Sequence[int], block_size: int
) -> list[tuple[set[Place], Place]]:
    """The places of a head's cache that the program of each request reads, and the place that it writes."""
    touched = []
    for row, length in zip(tables, context_lens, strict=True):
        places = [(row[t // block_size], t % block_size) for t in range(length + 1)]
        touched.append((set(places[:-1]), places[-1]))
    return touched


def conflicts(touched: Sequence[tuple[set[Place], Place]]) -> int:
    """How many places are written by one program and read or written by another."""
    return sum(
        place in reads or place == written
        for i, (_, place) in enumerate(touched)
        for j, (reads, written) in enumerate(touched)
        if i != j
    )


def next_step_of(engine: InferenceEngine) -> tuple[list[list[int]], list[int]]:
    """The table rows and lengths with which an engine's next step begins, room for its tokens included. The
    engine is left as it was."""
    manager = engine.kv_manager
    sessions = list(engine.scheduler.running.values())
    try:
        manager.reserve_token_batch(0, [session.block_ids_per_layer[0] for session in sessions])
        rows = [list(block_places(engine, session)[0]) for session in sessions]
        return rows, [session.num_tokens for session in sessions]
    finally:
        engine.decode_step.undo(sessions)


def attention_case(device: torch.device, head_size: int = 6) -> dict[str, Tensor | int]:
    """Arguments of `paged_attention_append_triton`: four rows, the last one padding; the contexts end at a
    boundary of a block, in the middle of a block, and one is empty. Slots that hold no token are NaN."""
    generator = torch.Generator().manual_seed(0)
    N, H, block_size, lens = 6, 2, 4, [5, 8, 0, -1]
    tables = [[4, 1, 0], [2, 5, 0], [3, 0, 0], [0, 0, 0]]
    tables[1][2] = 0  # the ninth token opens a block
    caches = torch.randn(2, N, H, block_size, head_size, generator=generator)
    for block, filled in ((4, 4), (1, 1), (2, 4), (5, 4), (0, 0), (3, 0)):
        caches[:, block, :, filled:] = torch.nan
    qkv = torch.randn(3, len(lens), H, head_size, generator=generator)
    named = dict(zip(("query", "key_new", "value_new"), qkv.to(device), strict=True))
    named |= dict(zip(("k_cache_layer", "v_cache_layer"), caches.to(device), strict=True))
    return {
        **named,
        "block_table": torch.tensor(tables, dtype=torch.int32, device=device),
        "context_lens": torch.tensor(lens, dtype=torch.int32, device=device),
        "slot_mapping": torch.arange(len(lens), device=device),
        "max_context_len": max(lens),
    }


def blocks_by_window(windows: Sequence[int | None], num_tokens: int, block_size: int) -> tuple[int, int]:
    """Blocks that a sequence needs in a model whose layers see only a window of tokens, summed over the
    layers: with a table per layer, and with one table for all layers. A window of None is the whole text; of
    0, a layer that uses another layer's keys and values."""
    each = []
    for window in windows:
        first = 0 if window is None else max(0, num_tokens - window) // block_size
        each.append(0 if window == 0 else -(-num_tokens // block_size) - first)
    return sum(each), len(each) * max(each)


# --- cost cards and host time -------------------------------------------------------------------------------


def cards_table(cards: Mapping[str, CostCard]) -> pd.DataFrame:
    """A column per cost card, by name; – where nothing was counted on a GPU."""
    table = pd.DataFrame({name: card.column() for name, card in cards.items()})
    shown = table.astype(object).where(table.notna(), "–")
    for name in shown:
        shown[name] = [int(n) if n != "–" else n for n in shown[name]]
    return shown.rename_axis(columns=next(iter(cards.values())).caption)


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


CARD_ROWS = {  # counts of a cost card: their words in a table
    "manager_calls": "calls into KVBlockManager",
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


def host_in_turn(
    engines: Mapping[str, EngineOptions],
    batch_size: int,
    device: torch.device,
    rounds: int = 4,
    num_steps: int = 12,
) -> dict[str, HostTime]:
    """Host time of each engine, measured now, in turn: the steps of all its runs together."""
    made = [host_engine(options, batch_size, device) for options in engines.values()]
    measures = [lambda e=engine: time_host_steps(e, num_steps) for engine in made]
    in_turn(measures, 1)
    sides = in_turn(measures, rounds)
    return {n: reduce(HostTime.with_steps_of, runs) for n, runs in zip(engines, sides, strict=True)}


def compare_host_times(before: HostTime, after: HostTime, runs: int = 8) -> Comparison:
    """Compare two results of `host_in_turn`; a sample is the median step of one of the `runs` runs of a
    side."""
    sides = [
        tuple(median(part) for part in np.array_split(np.array(time.step_seconds), runs))
        for time in (before, after)
    ]
    return Comparison("before", "after", *map(tuple, np.array(sides).tolist()), {}, {})


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a resident decode step's parts on the host: reserve, tell the device, launch and
    the rest."""
    return {
        "reserve": host.append_us,
        "tell the device": host.tables_us,
        "launch and the rest": host.rest_us,
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


# --- exercises --------------------------------------------------------------------------------------------


def append_all_layers(
    k_cache: Tensor,  # [L, N, H, block_size, D]
    block_table: Tensor,  # [B, M]
    context_lens: Tensor,  # [B]
    keys: Tensor,  # [L, B, H, D]
) -> None:
    """Write each request's new key behind its tokens, in all layers; rows of length -1 are padding, and
    nothing is written for them."""
    block_size = k_cache.shape[3]
    b = (context_lens >= 0).nonzero()[:, 0]
    block, pos = block_table[b, context_lens[b] // block_size], context_lens[b] % block_size
    for layer, layer_keys in zip(k_cache, keys, strict=True):
        layer[block, :, pos] = layer_keys[b]


def play_append_all_layers(
    attempt: Callable, block_table: list[list[int]], context_lens: list[int], block_size: int
) -> dict[str, Any]:
    """Call the attempt on a pool full of other tokens' keys, and return the places that it wrote and the
    request whose key lies at each. Raises BrokenContract if it overwrites other tokens."""
    L, N, H, D, B = 3, 2 + max(map(max, block_table)), 2, 5, len(block_table)
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(L, N, H, block_size, D, generator=generator)
    arguments = {
        "block_table": torch.tensor(block_table),
        "context_lens": torch.tensor(context_lens),
        "keys": torch.randn(L, B, H, D, generator=generator),
    }
    after, given = before.clone(), {name: tensor.clone() for name, tensor in arguments.items()}
    attempt(k_cache=after, **given)
    check_unchanged(given, arguments)
    found = keys_written(before, after, arguments["keys"])
    right = {
        (row[n // block_size], n % block_size)
        for row, n in zip(block_table, context_lens, strict=True)
        if n >= 0
    }
    if erased := [place for place, key in found.items() if key == NO_KEY and place not in right]:
        raise BrokenContract(
            f"it overwrote {one_line(str(erased))}, each a (block, slot), with numbers that are no new key. "
            "Other tokens' keys lie there: write the new keys, and nothing else."
        )
    return {"the places written, as (block, slot)": sorted(found), "whose keys are where": found}


NO_KEY = "a mixture"


def keys_written(before: Tensor, after: Tensor, keys: Tensor) -> dict[tuple[int, int], str]:
    """The request whose key lies at each changed (block, slot) of a pool [L, N, H, block_size, D], in words.
    keys: the new ones, [L, B, H, D]."""
    places = (before != after).any(4).any(2).any(0).nonzero()  # [P, 2]
    blocks, slots = places.unbind(1)
    written = after.permute(1, 3, 0, 2, 4)[blocks, slots]  # [P, L, H, D]
    is_key = written[:, None].isclose(keys.transpose(0, 1)).flatten(3).all(3)  # [P, B, L]
    return {tuple(p): _whose(k) for p, k in zip(places.tolist(), is_key.tolist(), strict=True)}


def _whose(is_key: list[list[bool]]) -> str:
    """The request whose key lies at a place, in words. is_key: [B][L], whether a layer has the request's key
    there."""
    for b, layers in enumerate(is_key):
        if any(layers):
            where = [layer for layer, its_key in enumerate(layers) if its_key]
            return f"request {b}" if all(layers) else f"request {b}, in layers {where} only"
    return NO_KEY


def draw_append_all_layers(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `append_all_layers`: requests of up to three blocks, which end at a boundary or
    between, with padding rows anywhere."""
    block_size, free_blocks = rng.choice((1, 2, 4, 8)), rng.sample(range(14), 14)
    block_table, context_lens = [], []
    for _ in range(rng.randint(1, 4)):
        longest = 3 * block_size - 1
        at_an_end = block_size * rng.randint(0, 3) - 1  # the last slot of a block; -1 is padding
        length = rng.choice((at_an_end, min(at_an_end + 1, longest), rng.randint(0, longest)))
        used = [free_blocks.pop() for _ in range(length // block_size + 1)]
        block_table.append(used + [0] * (3 - len(used)))
        context_lens.append(length)
    return _call(block_table, context_lens, block_size)


def _call(block_table: list[list[int]], context_lens: list[int], block_size: int = 4) -> dict[str, Any]:
    return {"block_table": block_table, "context_lens": context_lens, "block_size": block_size}


_PLACES, _WHOSE = "the places written, as (block, slot)", "whose keys are where"

APPEND_ALL_LAYERS = Exercise(
    name="append_all_layers",
    cases=(
        Case(
            _call([[2, 0]], [1]),
            {_PLACES: [(2, 1)]},
            "Token number 1 (the second) goes to slot 1 of the first block that the row names, in `k_cache` "
            "itself.",
        ),
        Case(
            _call([[2, 0]], [1]),
            {_WHOSE: {(2, 1): "request 0"}},
            "One table serves all layers: the block lies at the same place in each, and each gets its own "
            "key, with all its heads.",
        ),
        Case(
            _call([[2, 5]], [4]),
            {_PLACES: [(5, 0)]},
            "With 4 tokens in blocks of 4 the first block is full: the new token opens the row's second one.",
        ),
        Case(
            _call([[2, 5]], [4], block_size=8),
            {_PLACES: [(2, 4)]},
            "Blocks are not always of 4 slots: the shape of `k_cache` says of how many.",
        ),
        Case(
            _call([[2, 0], [1, 3], [4, 0]], [1, 6, 0]),
            {_WHOSE: {(2, 1): "request 0", (3, 2): "request 1", (4, 0): "request 2"}},
            "Each request has its own row, length and key, and each layer and head its own piece of the key.",
        ),
        Case(
            _call([[2, 0], [0, 0]], [3, -1]),
            {_PLACES: [(2, 3)]},
            "A length of -1 is a row that pads the batch. Nothing is stored for it; block 0 is somebody's.",
        ),
        Case(
            _call([[2, 0], [0, 0], [1, 3]], [3, -1, 6]),
            {_WHOSE: {(2, 3): "request 0", (3, 2): "request 2"}},
            "Padding may lie between two requests: leave that row out, and go on with the next.",
        ),
    ),
    solution=append_all_layers,
    draw=draw_append_all_layers,
    drawn_hint="A request's new key goes behind its tokens, in each layer, and nothing else is written.",
    play=play_append_all_layers,
)


def blocks_needed(sequences: list[tuple[int, int | None]], holders: dict[int, int], block_size: int) -> int:
    """How many free blocks one more token behind each sequence takes from the pool, in order."""
    holders = dict(holders)
    needed = 0
    for num_tokens, last_block in sequences:
        if num_tokens % block_size == 0:  # empty, or its last block is full
            needed += 1
        elif holders[last_block] > 1:  # copied; the last holder writes in place
            holders[last_block] -= 1
            needed += 1
    return needed


def draw_blocks_needed(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `blocks_needed`: sequences that share their last blocks with each other, with others,
    or not at all, in any order."""
    block_size = rng.choice((1, 2, 4, 8))
    sequences, holders = [], {}
    for block in rng.sample(range(12), rng.randint(1, 3)):
        num_tokens = rng.choice((0, block_size, 2 * block_size, rng.randint(1, 3 * block_size)))
        sharers = rng.choice((1, 1, 2, 3))
        sequences += [(num_tokens, block if num_tokens else None)] * sharers
        if num_tokens:
            holders[block] = sharers + rng.choice((0, 0, 1, 2))
    rng.shuffle(sequences)
    return {"sequences": sequences, "holders": holders, "block_size": block_size}


BLOCKS_NEEDED = Exercise(
    name="blocks_needed",
    cases=(
        Case(
            {"sequences": [(5, 7), (6, 2)], "holders": {7: 1, 2: 1}, "block_size": 4},
            0,
            "There is room in both last blocks, and nobody else holds them.",
        ),
        Case(
            {"sequences": [(8, 7), (6, 2)], "holders": {7: 1, 2: 1}, "block_size": 4},
            1,
            "A full last block needs a new one behind it: one, as a block is taken in all layers at once.",
        ),
        Case(
            {"sequences": [(0, None)], "holders": {}, "block_size": 4},
            1,
            "A sequence without tokens has no block yet.",
        ),
        Case(
            {"sequences": [(6, 2)], "holders": {2: 2}, "block_size": 4},
            1,
            "Somebody else holds the block, too (say, the prefix cache): it is copied before it is written.",
        ),
        Case(
            {"sequences": [(8, 7), (8, 7)], "holders": {7: 2}, "block_size": 4},
            2,
            "A full block is not written again, so sharing it needs no copy; each sequence opens a new one.",
        ),
        Case(
            {"sequences": [(6, 2), (6, 2)], "holders": {2: 2}, "block_size": 4},
            1,
            "The first copies and lets go. Then the second is the only holder and writes in place. (The "
            "engine would count both, to be on the safe side; here count what is taken.)",
        ),
        Case(
            {"sequences": [(6, 2), (6, 2)], "holders": {2: 3}, "block_size": 4},
            2,
            "Somebody who does not write in this step holds it, too, so both copy.",
        ),
        Case(
            {"sequences": [(6, 0)], "holders": {0: 2}, "block_size": 4},
            1,
            "0 is the id of a block. Only None says that there is none.",
        ),
        Case(
            {"sequences": [(6, 2)], "holders": {2: 1}, "block_size": 2},
            1,
            "Blocks are not always of 4 tokens: this last block is full.",
        ),
    ),
    solution=blocks_needed,
    draw=draw_blocks_needed,
    drawn_hint="A sequence takes a block if it has none, if its last is full, or if others still hold its "
    "last when its turn comes.",
)
