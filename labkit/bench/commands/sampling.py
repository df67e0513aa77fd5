"""sampling: times batches that draw in several ways, on a rung that sorts the vocabulary and on the next.

For each manner of sampling the two rungs run in turn, with one engine each for all runs. Times are of
decoding alone. One round is too few for a verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from tqdm import tqdm

from labkit.bench.commands.arguments import (
    BATCH,
    COUNT,
    ModelFlags,
    RecordFlags,
    model_of,
    require_decoding,
    require_positions,
    rounds_flag,
)
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.comparison import in_turn
from labkit.bench.limit import measure_bandwidth
from labkit.bench.peers.run import step_through
from labkit.bench.record import make_record
from labkit.bench.workload import Request, Workload
from labkit.engine import InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.model import LanguageModel
from labkit.results.sampling import SamplingRun

RUNGS = ("11", "12")
TOP_P = {"temperature": 0.8, "top_p": 0.95}
# How requests pick their tokens: what changes in the parameters of those that draw, and how many do.
MANNERS: dict[str, tuple[dict[str, float], int | None]] = {
    "greedy": ({}, 0),
    "temperature 0.8": ({"temperature": 0.8}, None),
    "top-p 0.95 at 0.8": (TOP_P, None),
    "top-k 40 at 0.8": ({"temperature": 0.8, "top_k": 40}, None),
    "one request: top-p 0.95": (TOP_P, 1),
}


@dataclass
class Settings(RecordFlags, ModelFlags):
    num_requests: int = flag(ByDevice(64, 16), "this many requests are served", COUNT)
    max_new_tokens: int = flag(ByDevice(256, 32), "a request makes at most this many tokens", COUNT)
    max_batch_size: int = flag(ByDevice(64, 16), "at most this many requests are decoded together", BATCH)
    rounds: int = rounds_flag(4)


def run(args: Settings) -> None:
    """Raises OptionError if nothing is decoded, or if the texts are longer than the model takes."""
    require_decoding(args)
    device = pick_device(args.device)
    path = own_target(args, "sampling", device)
    model = model_of(args)
    workloads = {name: manner_workload(model, args, *manner) for name, manner in MANNERS.items()}
    require_positions(workloads["greedy"], args)
    engines = {rung: workloads["greedy"].make_engine(LADDER[rung].options) for rung in RUNGS}
    samples: list[SamplingRun] = []
    num_runs = len(MANNERS) * len(RUNGS) * 2 * args.rounds
    with tqdm(total=num_runs, unit=" runs") as bar, args.until_interrupted(samples):
        for name, workload in workloads.items():
            first: list[tuple[int, ...]] = []
            measures = [partial(measured, name, workload, *each, first) for each in engines.items()]
            samples += chain(*in_turn(measures, args.rounds, bar.update, warm_up=1))
    record = make_record("sampling", device, measure_bandwidth(device), args.settings, samples)
    print(f"{model}, {args.num_requests} requests x {args.max_new_tokens} tokens")
    print(record.table().to_string())
    write_own(record, path)


def manner_workload(
    model: LanguageModel, args: Settings, drawing: Mapping[str, float], num_drawing: int | None
) -> Workload:
    """Requests that are alike but for their seeds; the first `num_drawing` draw, or all of them."""
    greedy = SamplingParams(args.max_new_tokens, stop_on_eos=False)
    prompt = tuple(model.tokenizer.encode("Hello"))
    num_drawing = args.num_requests if num_drawing is None else num_drawing
    requests = tuple(
        Request(prompt, replace(greedy, seed=args.seed + i, **drawing) if i < num_drawing else greedy)
        for i in range(args.num_requests)
    )
    together = args.max_batch_size
    scheduler = SchedulerConfig(together, together, together * len(prompt))
    return Workload(model, requests, model.device, scheduler)


def measured(
    name: str, workload: Workload, rung: str, engine: InferenceEngine, first: list[tuple[int, ...]]
) -> SamplingRun:
    """A run of a workload. first: the texts of its first run, which are added by that."""
    before = engine.stats().counters
    texts = step_through(workload, engine).token_ids
    after = engine.stats().counters
    first += [] if first else texts
    return SamplingRun(
        manner=name,
        rung=rung,
        decode_seconds=after.decode_seconds - before.decode_seconds,
        decode_steps=after.decode_steps - before.decode_steps,
        tokens=sum(map(len, texts)),
        equal_requests=sum(a == b for a, b in zip(texts, first, strict=True)),
    )
