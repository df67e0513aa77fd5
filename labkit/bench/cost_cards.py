"""What one decode step does, counted while it runs. No clock: every run on a kind of machine counts alike."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from shutil import get_terminal_size
from types import CodeType, FrameType

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.flags import ByDevice, Flags, Kind, batch_sizes_flag, flag, rungs_flag
from labkit.bench.profile import traced_events
from labkit.bench.workload import difference
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.kernels.eight_bit import bytes_of_head, is_eight_bit, scales_of
from labkit.kvcache import KVBlockInfo, KVBlockManager
from labkit.ladder import LADDER
from labkit.model import load_model
from labkit.results import files
from labkit.results.cost_cards import CardKey, CostCard, DeviceCounts, HostCounts, RungCard
from labkit.watch import OperatorCounter, profiled_by, steady_decode, steady_prompts

RECORDED = "cost_cards_h100"  # and no record of a reader's: a lesson shows the same on every CPU
PROMPT_LENGTHS = (20,), (20, 23)  # tokens of the prompts, in turn: with the first all positions are equal
STEADY_TOKENS = 16  # more than a card's steps take, and few enough to stay within a block


def cost_card(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> CostCard:
    """Count what a steady decode step of these prompts does, with one step for each way of counting.

    Without a GPU, the device's counts are those recorded on one for the same model, options and prompts.
    Raises ValueError if the steps differ, because one of them meets a block boundary.
    """
    ways = [count_calls, count_operators, count_kv_bytes]
    ways += [count_on_device] if engine.device.type == "cuda" else []
    counted, ran = [], []
    with steady_decode(engine, prompts, max_new_tokens=STEADY_TOKENS):
        for count in ways:
            before = engine.stats().append_paths
            counted.append(count(engine))
            ran.append(difference(before, engine.stats().append_paths))
    if any(paths != ran[0] for paths in ran):
        raise ValueError(f"the steps of a card must be alike, but took {ran}")
    (calls, infos), (ops, index_tensors), kv_bytes, *on_device = counted
    host = HostCounts(calls, infos, ops, index_tensors, kv_bytes)
    device = on_device[0] if on_device else recorded_counts(engine, prompts)
    return CostCard(len(prompts), ran[0], host, device)


def recorded_counts(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> DeviceCounts | None:
    """What was counted on a GPU in such a step; None if that was not recorded."""
    if not (files.RESULTS / f"{RECORDED}.json").exists():
        return None
    device = files.load(RECORDED).device_counts(engine_key(engine, prompts))
    return device and replace(device, source=f"recorded, {device.source}")


# --- ways of counting: each runs one step --------------------------------------------------------------


def count_calls(engine: InferenceEngine) -> tuple[int, int]:
    """Run a step; count calls into the block manager from outside it, and the block records it creates."""
    called: Counter[tuple[CodeType, str]] = Counter()  # what is called, and the file that it is called from

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_back is not None:
            called[frame.f_code, frame.f_back.f_code.co_filename] += 1

    with profiled_by(on_event):
        engine.step()
    manager = engine.kv_manager
    members = [member for cls in type(manager).__mro__[:-1] for member in vars(cls).values()]
    functions = [m.fget if isinstance(m, property) else m for m in members]
    methods = {f.__code__ for f in functions if inspect.isfunction(f)}
    inside, constructors = {code.co_filename for code in methods}, constructors_of(manager)
    calls = sum(n for (code, caller), n in called.items() if code in methods and caller not in inside)
    return calls, sum(n for (code, _), n in called.items() if code in constructors)


def constructors_of(manager: KVBlockManager) -> set[CodeType]:
    """The code that makes a block's record: of the manager's own kind, and the immutable one."""
    replaced = vars(KVBlockInfo)["_make"].__func__  # what `_replace` calls
    makers = [KVBlockInfo.__new__, replaced, manager.info_type.__new__, manager.info_type.__init__]
    return {maker.__code__ for maker in makers if inspect.isfunction(maker)}


def count_operators(engine: InferenceEngine) -> tuple[int, int]:
    """Run a step; count the PyTorch operators dispatched, and integer tensors made from Python numbers."""
    with OperatorCounter() as counter:
        engine.step()
    return counter.operators, counter.index_tensors


def count_kv_bytes(engine: InferenceEngine) -> int:
    """Run a step; count the bytes of new keys and values.

    Slots that hold no token are filled with NaN before the step; what is a number after it was written.
    """
    manager = engine.kv_manager
    free = ~manager.live_slots()[:, :, None, :]  # [L, N, 1, block_size]
    caches = (manager.k_cache, manager.v_cache)
    marks = [scales_of(cache) if is_eight_bit(cache) else cache[..., 0] for cache in caches]
    for mark in marks:
        mark.masked_fill_(free, torch.nan)
    engine.step()
    written = sum(int((free & ~mark.isnan()).sum()) for mark in marks)
    *_, block_size, head_dim = manager.k_cache.shape
    return written * bytes_of_head(block_size, head_dim, manager.k_cache.dtype) // block_size


def count_on_device(engine: InferenceEngine) -> DeviceCounts:
    """Run a step on a GPU; count what the GPU is asked for, from the profiler's trace."""
    return read_device_counts(traced_events(engine), torch.cuda.get_device_name(engine.device))


def read_device_counts(events: Sequence[dict], device: str) -> DeviceCounts:
    """Count the events of a step's Chrome trace. device: the GPU's name.

    The trace ends with a synchronization that is not the step's, and does not count.
    """
    h2d = [e for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    d2h = [e for e in events if e.get("cat") == "gpu_memcpy" and "DtoH" in e["name"]]
    waits = [e for e in events if e.get("cat") == "cuda_runtime" and "Synchronize" in e["name"]]
    of_the_step = [e for e in waits if e["name"] != "cudaDeviceSynchronize"]
    return DeviceCounts(
        kernels=sum(e.get("cat") == "kernel" for e in events),
        h2d_copies=len(h2d),
        h2d_bytes=sum(e["args"]["bytes"] for e in h2d),
        h2d_synchronizing=sum("Pageable" in e["name"] for e in h2d),
        d2h_copies=len(d2h),
        synchronizations=len(of_the_step),
        source=f"counted on {device}",
    )


# --- recorded cards ------------------------------------------------------------------------------------


def engine_key(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> CardKey:
    """The key of a card of these prompts' step: what its counts depend on, beside the kind of machine."""
    lengths = tuple(len(prompt) for prompt in prompts)
    return CardKey(engine.model.name, asdict(engine.options), engine.kv_manager.block_size, lengths)


def counts_of_alike(card: CostCard, others: Sequence[CostCard]) -> DeviceCounts | None:
    """The device's counts for a step of which none were recorded: those of the cards whose host asks PyTorch
    for as much. None if there is no such card, or if these differ."""

    def asked(host: HostCounts) -> tuple[int, ...]:
        return host.aten_ops, host.index_tensors, host.kv_bytes_written

    alike = [other.device for other in others if asked(other.host) == asked(card.host)]
    return alike[0] if alike and all(device == alike[0] for device in alike) else None


# --- the command ---------------------------------------------------------------------------------------


@dataclass
class CountCards(Flags):
    """Count what one steady decode step does, for each rung, model and batch size."""

    kind = "cost_card"

    rungs: tuple[str, ...] = rungs_flag()
    models: tuple[str, ...] = flag(
        ByDevice(("data/tiny-gpt2", "random:gpt2"), ("data/tiny-gpt2",)),
        "steps of these models are counted; each is a directory, a hub id, or random weights such as "
        "random:gpt2",
        Kind(lambda text: tuple(text.split(",")), "MODEL,MODEL,..."),
    )
    batch_sizes: tuple[int, ...] = batch_sizes_flag((8, 64, 128))

    def run(self) -> None:
        samples: list[RungCard] = []
        cards: dict[str, dict[str, CostCard]] = {}  # by what a table is about, and by rung
        with self.until_interrupted(samples):
            for name in self.models:
                model = load_model(name)
                for rung, batch_size, lengths in tqdm(
                    list(product(self.rungs, self.batch_sizes, PROMPT_LENGTHS)), desc=name
                ):
                    engine = InferenceEngine(
                        model,
                        LADDER[rung].options,
                        device=pick_device(self.device),
                        cache=CacheConfig(prefix_cache=False, max_blocks_per_layer=batch_size),
                        scheduler=SchedulerConfig(
                            max_batch_size=batch_size, prefill_max_batch_size=batch_size
                        ),
                    )
                    prompts = steady_prompts(batch_size, lengths)
                    card = cost_card(engine, prompts)
                    samples.append(RungCard(rung, batch_size, engine_key(engine, prompts), card))
                    about = f"{name}, B = {batch_size}, prompts of {' and '.join(map(str, lengths))} tokens"
                    cards.setdefault(about, {})[rung] = card
        for about, made in cards.items():
            print(f"\n{about}\n{cards_text(made)}")
        self.record_if_asked(samples, model=", ".join(self.models))


def cards_text(cards: Mapping[str, CostCard]) -> str:
    """A line that says where the GPU's rows come from, and the cards as a table with a column for each; it
    goes on below where a terminal has room for no more columns."""
    captions = dict.fromkeys(card.caption for card in cards.values())
    columns = {f"rung {name}": {row: f"{n:,}" for row, n in c.column().items()} for name, c in cards.items()}
    table = pd.DataFrame(columns).fillna("–")
    return f"{'; '.join(captions)}\n{table.to_string(line_width=get_terminal_size().columns)}"
