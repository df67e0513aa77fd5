"""Five loads through labkit and other engines."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from labkit.bench.arguments import (
    BATCH,
    COUNT,
    RATE,
    TOKENS,
    ModelFlags,
    RecordFlags,
    model_of,
    rounds_flag,
    rungs_flag,
)
from labkit.bench.flags import ByDevice, flag
from labkit.bench.limit import forward_flops, matmul_rate, measure_bandwidth
from labkit.bench.loads import Asked, make_load
from labkit.bench.peers.together import COMPILED, CONTINUOUS, DYNAMIC, PADDED, peer_versions, run_peers
from labkit.bench.record import make_record, own_target, write_own, write_record
from labkit.bench.workload import Request, Workload
from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.errors import OptionError
from labkit.model import LanguageModel, ModelConfig
from labkit.results.loads import LoadRun, LoadsRecord

RUNGS = ("05", "08", "09", "10")
LOADS = ("sampled", "ragged", "prompt-heavy", "arrivals", "shared-prefix")
OTHERS = (DYNAMIC, PADDED, CONTINUOUS, COMPILED)


@dataclass
class RunLoads(RecordFlags, ModelFlags):
    """Run five loads through labkit and other engines in turn, beside the least that each load can take.

    The loads are requests that draw, requests of unequal length, long prompts, requests that arrive one after
    another, and prompts that begin alike. Throughput is by the wall clock, from token ids to token ids,
    prompts included. Where requests arrive one after another, TTFT and ITL are shown too: labkit's as its
    clients get the tokens, the others' as their own thread gets them. The limit counts the bytes of decoding
    at the bandwidth of a copy and the arithmetic of the prompts at the rate of a large product. An engine
    that cannot serve a load is named, with the reason.
    """

    rungs: tuple[str, ...] = rungs_flag(RUNGS)
    num_requests: int = flag(ByDevice(64, 8), "each load has this many requests", COUNT)
    max_new_tokens: int = flag(ByDevice(128, 16), "a request makes at most this many tokens", TOKENS)
    max_batch_size: int = flag(ByDevice(64, 8), "at most this many requests are decoded together", BATCH)
    rate: float = flag(50.0, "in `arrivals` this many requests arrive per second", RATE)
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        """The record is written after each load: if a long run is stopped, the loads before are kept."""
        device = pick_device(self.device)
        path = own_target(self, "loads", device)
        model = model_of(self)
        workloads = {name: load_workload(name, model, self) for name in LOADS}
        measured = {"matmul_rate": matmul_rate(device, model.dtype)}
        bandwidth, versions = measure_bandwidth(device), peer_versions()
        samples, left_out, limits = [], {}, {}

        def record_of() -> LoadsRecord:
            found = {"limits": limits, "left_out": left_out, "versions": versions}
            return make_record("loads", device, bandwidth, self.settings | measured | found, samples)

        with self.until_interrupted(samples):
            for name, workload in workloads.items():
                started = time.perf_counter()
                with tqdm(desc=name, unit=" runs") as bar:
                    ran = run_peers(workload, self.rungs, self.rounds, bar.update, OTHERS)
                left_out[name], limits[name] = ran.left_out, limit_of(workload)
                is_greedy = all(request.params.is_greedy for request in workload.requests)
                samples += [
                    LoadRun(
                        load=name,
                        engine=engine,
                        seconds=made.seconds,
                        tokens=made.tokens,
                        equal_requests=ran.equal_requests(made) if is_greedy else None,
                        ttft=tuple(round(s, 7) for s in made.ttft) if workload.has_arrivals else (),
                        itl_us=tuple(round(1e6 * s) for s in made.itl) if workload.has_arrivals else (),
                    )
                    for engine, runs in ran.runs.items()
                    for made in runs
                ]
                write_record(record_of(), path)
                print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        record = record_of()
        print(f"{model}, {self.num_requests} requests, tokens per second by the wall clock")
        print(record.table().to_string())
        print(f"Memory: {bandwidth}")
        print(f"Arrivals, {self.rate:g} per second:\n{record.latency_table().to_string()}")
        for name, reasons in left_out.items():
            for engine, reason in reasons.items():
                print(f"Left out of {name}: {engine} ({reason})")
        write_own(record, path)


def load_workload(name: str, model: LanguageModel, args: RunLoads) -> Workload:
    """A load of the command's size. Prompts are kept where they begin alike, and only there.

    Raises OptionError if a prompt with its answer is longer than the model takes.
    """
    params = SamplingParams(args.max_new_tokens, stop_on_eos=False)
    alike = (Request(tuple(model.tokenizer.encode("Hello")), params),) * args.num_requests
    asked = Asked(alike, model.config, args.seed, args.rate)
    requests = make_load(name, asked)
    scheduler = SchedulerConfig(
        max_batch_size=args.max_batch_size,
        prefill_max_batch_size=args.max_batch_size,
        prefill_max_tokens=sum(len(request.prompt) for request in requests),
    )
    cache = CacheConfig(prefix_cache=name == "shared-prefix")
    workload = Workload(model, requests, model.device, scheduler, cache)
    if workload.longest > (most := model.config.max_positions):
        raise OptionError(
            f"load {name} has texts of up to {workload.longest} tokens, more than the {most} positions of "
            f"{args.model}: take a smaller --max-new-tokens"
        )
    return workload


def limit_of(workload: Workload) -> dict[str, float]:
    """What a load asks at least, as a `LoadsRecord` has it."""
    return {
        "tokens": sum(workload.max_new_tokens),
        "num_bytes": workload.limit(bandwidth=1.0).num_bytes,
        "prompt_flops": prompt_flops(workload.model.config, workload.prompt_ids()),
        "last_arrival": max(request.arrives_at for request in workload.requests),
    }


def prompt_flops(config: ModelConfig, prompts: Sequence[Sequence[int]]) -> float:
    """FLOP of the prompts; a beginning that several share is computed once."""
    flops, before = 0.0, ()
    for prompt in sorted(map(tuple, prompts)):  # so each shares most with the one before
        shared = next((i for i, (a, b) in enumerate(zip(prompt, before, strict=False)) if a != b), None)
        new = len(prompt) - (min(len(prompt), len(before)) if shared is None else shared)
        flops += forward_flops(config, new, len(prompt)) if new else 0.0
        before = prompt
    return flops
