"""All peers on one workload, in turn; and the commands that compare them: on one workload, on five loads."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import torch
from tqdm import tqdm

from labkit.bench.comparison import in_turn
from labkit.bench.flags import (
    BATCH,
    RATE,
    TOKENS,
    ByDevice,
    Kind,
    ModelFlags,
    RecordFlags,
    WorkloadFlags,
    flag,
    model_of,
    names_of,
    rounds_flag,
    rungs_flag,
    workload_of,
)
from labkit.bench.limit import forward_flops, matmul_rate, measure_bandwidth
from labkit.bench.loads import Asked, make_load
from labkit.bench.peers.compiled_loop import COMPILED, compiled_peer
from labkit.bench.peers.others import (
    CONTINUOUS,
    DYNAMIC,
    PADDED,
    STATIC,
    VLLM,
    as_transformers,
    continuous_peer,
    generate_peer,
    quiet_transformers,
    vllm_peer,
    with_padded_vocabulary,
)
from labkit.bench.peers.run import CannotServeError, Peer, PeerRun, labkit_peer
from labkit.bench.workload import Request, Workload
from labkit.engine import SamplingParams
from labkit.engine.device import default_dtype, pick_device
from labkit.errors import OptionError
from labkit.model import LanguageModel, ModelConfig
from labkit.results.peers import LoadRun, PeerSample

RUNGS = ("00", "05", "08", "09", "10")
PEERS = {  # by the names of --others
    "dynamic": DYNAMIC,
    "static": STATIC,
    "padded": PADDED,
    "continuous": CONTINUOUS,
    "loop": COMPILED,
    "vllm": VLLM,
}
LOADS = ("sampled", "ragged", "prompt-heavy", "arrivals", "shared-prefix")  # of the command `loads`
LOADS_RUNGS = ("05", "08", "09", "10")
LOADS_PEERS = (DYNAMIC, PADDED, CONTINUOUS, COMPILED)


@dataclass(frozen=True)
class PeerRuns:
    """Runs made in turn, by engine, and why an engine that was meant to run has none."""

    runs: dict[str, list[PeerRun]]
    left_out: dict[str, str]
    compiled: bool  # whether transformers compiled its forward for the static cache
    requests: int

    def equal_requests(self, run: PeerRun) -> int:
        """How many requests got the tokens that the first engine's first run gave them."""
        expected = next(iter(self.runs.values()))[0].token_ids
        return sum(map(tuple.__eq__, run.token_ids, expected))


def run_peers(
    workload: Workload,
    rungs: Sequence[str],
    rounds: int,
    progress: Callable[[], object] = lambda: None,
    others: Sequence[str] = tuple(PEERS.values()),
    interrupted: Callable[[], object] | None = None,
) -> PeerRuns:
    """Run the workload through labkit at these rungs and through other engines, in turn.

    Each has its warm-up first: compiling and capturing are no part of a run. A peer that cannot serve the
    workload or fails there is left out, with its reason; a rung that fails raises. progress: called after
    each run, warm-ups too. others: of PEERS. interrupted: as `in_turn` has it.
    """
    device = pick_device(workload.device)
    workload = replace(workload, model=workload.model.to(device, default_dtype(device)), device=device)
    if device.type == "cuda":  # what another workload left: its caches, and what was compiled for its shapes
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    peers: dict[str, Peer] = {}
    left_out: dict[str, str] = {}
    for rung in rungs:
        peers[f"labkit {rung}"] = labkit_peer(workload, rung)
        peers[f"labkit {rung}"]()
        progress()
    with quiet_transformers():
        plain = cache(lambda: as_transformers(workload.model))
        padded = cache(lambda: with_padded_vocabulary(as_transformers(workload.model)))
        makers: dict[str, Callable[[], Peer]] = {
            DYNAMIC: lambda: generate_peer(workload, plain(), None),
            STATIC: lambda: generate_peer(workload, plain(), "static"),
            PADDED: lambda: generate_peer(workload, padded(), "static"),
            CONTINUOUS: lambda: continuous_peer(
                workload, with_padded_vocabulary(as_transformers(workload.model))
            ),
            COMPILED: lambda: compiled_peer(workload),
            VLLM: lambda: vllm_peer(workload, plain()),
        }
        for name in others:
            peer = warmed_up(makers[name])
            if isinstance(peer, str):
                left_out[name] = peer
            else:
                peers[name] = peer
            progress()
        made = in_turn(list(peers.values()), rounds, progress, interrupted)
        made_here = [reference() for reference in (plain, padded) if reference.cache_info().currsize]
        compiled = any(hasattr(reference, "_compiled_call") for reference in made_here)
    return PeerRuns(dict(zip(peers, made, strict=True)), left_out, compiled, len(workload.requests))


def warmed_up(make: Callable[[], Peer]) -> Peer | str:
    """A peer that has run twice, or why there is none, in a sentence."""
    try:
        peer = make()
        peer()
        peer()  # a compiled forward may be compiled again, or captured, at its second call
    except CannotServeError as error:
        return str(error)
    except Exception as error:  # whatever someone else's engine raises
        said = str(error).strip() or "no message"
        return f"{type(error).__name__}: {said.splitlines()[0][:200]}"
    return peer


@dataclass
class RunPeers(RecordFlags, WorkloadFlags):
    """Run the same requests through labkit and other people's engines, with the same weights, in turn.

    The engines are labkit at a few rungs; transformers' `generate` with its dynamic and its static cache (the
    latter also with a padded vocabulary); its continuous batching; a loop over a compiled step; and vLLM
    where it is installed. Every engine has a warm-up that is not measured. A run is timed from the requests'
    token ids to the last token id. Decode rates leave out the time to the first tokens, and are shown where
    one batch holds all requests. An engine that cannot serve the requests is named, with the reason.
    """

    kind = "peers"

    rungs: tuple[str, ...] = rungs_flag(RUNGS)
    others: tuple[str, ...] = flag(
        tuple(PEERS), "these other engines run", Kind(names_of(PEERS), "NAME,NAME,...")
    )
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        """Raises OptionError unless requests make all their tokens."""
        if not self.no_stop_on_eos:
            raise OptionError("peers compares runs of equal length: add --no-stop-on-eos")
        workload = workload_of(self)
        bandwidth = measure_bandwidth(workload.model.device)
        limit = workload.limit(bandwidth.copy)
        with tqdm(unit=" runs") as bar:
            others = [PEERS[name] for name in self.others]
            ran = run_peers(workload, self.rungs, self.rounds, bar.update, others, self.mark_interrupted)
        print(f"{workload.model}, {self.num_requests} requests, batches of {self.max_batch_size}")
        found = {"left_out": ran.left_out, "static_cache_compiled": ran.compiled, "versions": peer_versions()}
        in_one_batch = len(workload.requests) <= workload.scheduler.max_batch_size
        samples = [
            PeerSample(
                engine=name,
                seconds=made.seconds,
                first_token_seconds=made.first_token_seconds,
                tokens=made.tokens,
                decode_tokens_per_second=decode_rate(made, in_one_batch),
                equal_requests=ran.equal_requests(made),
                limit_seconds=limit.seconds,
            )
            for name, runs in ran.runs.items()
            for made in runs
        ]
        record = self.record(samples, bandwidth, **found)
        print(record.table().to_string())
        for name in record.engines:
            equal = f"same tokens in {record.same_tokens(name)} of {self.num_requests} requests"
            print(f"{record.comparison(name, f'labkit {self.rungs[-1]}')}\n  {equal}")
        print(f"Limit of decode: {limit.tokens_per_second:,.0f} tokens/s at {bandwidth}")
        for name, reason in ran.left_out.items():
            print(f"Left out: {name} ({reason})")
        self.write(record)


def decode_rate(run: PeerRun, in_one_batch: bool) -> float | None:
    """Tokens per second after the first tokens; None where requests still waited then, or none is known."""
    if run.first_token_seconds is None or not in_one_batch or run.tokens == len(run.token_ids):
        return None
    return (run.tokens - len(run.token_ids)) / (run.seconds - run.first_token_seconds)


def peer_versions() -> dict[str, str]:
    """The versions of the peers' packages that are installed, by package.

    With that of flash attention transformers' continuous batching is another engine than without.
    """
    return {name: version(name) for name in ("transformers", "vllm", "flash_attn") if find_spec(name)}


# --- five loads ------------------------------------------------------------------------------------------


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

    kind = "loads"

    rungs: tuple[str, ...] = rungs_flag(LOADS_RUNGS)
    num_requests: int = flag(ByDevice(64, 8), "each load has this many requests")
    max_new_tokens: int = flag(ByDevice(128, 16), "a request makes at most this many tokens", TOKENS)
    max_batch_size: int = flag(ByDevice(64, 8), "at most this many requests are decoded together", BATCH)
    rate: float = flag(50.0, "in `arrivals` this many requests arrive per second", RATE)
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        """The record is written after each load: if a long run is stopped, the loads before are kept."""
        model, samples = model_of(self), list[LoadRun]()
        workloads = {name: load_workload(name, model, self) for name in LOADS}
        limits, left_out = dict[str, dict[str, float]](), dict[str, dict[str, str]]()
        found = {"limits": limits, "left_out": left_out, "versions": peer_versions()}
        found["matmul_rate"] = matmul_rate(model.device, model.dtype)
        bandwidth = measure_bandwidth(model.device)
        with self.until_interrupted(samples):
            for name, workload in workloads.items():
                started = time.perf_counter()
                with tqdm(desc=name, unit=" runs") as bar:
                    ran = run_peers(workload, self.rungs, self.rounds, bar.update, LOADS_PEERS)
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
                self.write(self.record(samples, bandwidth, **found))
                print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        record = self.record(samples, bandwidth, **found)
        print(f"{model}, {self.num_requests} requests, tokens per second by the wall clock")
        print(record.table().to_string())
        print(f"Memory: {bandwidth}")
        print(f"Arrivals, {self.rate:g} per second:\n{record.latency_table().to_string()}")
        for name, reasons in left_out.items():
            for engine, reason in reasons.items():
                print(f"Left out of {name}: {engine} ({reason})")
        self.write(record)


def load_workload(name: str, model: LanguageModel, args: RunLoads) -> Workload:
    """A load of the command's size. Prompts are kept where they begin alike, and only there.

    Raises OptionError if a prompt with its answer is longer than the model takes.
    """
    params = SamplingParams(args.max_new_tokens, stop_on_eos=False)
    alike = (Request(tuple(model.tokenizer.encode("Hello")), params),) * args.num_requests
    asked = Asked(alike, model.config, args.seed, args.rate)
    workload = Workload.at_once(model, make_load(name, asked), args.max_batch_size, name == "shared-prefix")
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
