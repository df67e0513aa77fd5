"""All peers on one workload, in turn; and the command that compares them."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from tqdm import tqdm

from labkit.bench.arguments import RecordFlags, WorkloadFlags, names_of, rounds_flag, rungs_flag, workload_of
from labkit.bench.comparison import in_turn
from labkit.bench.flags import Kind, flag
from labkit.bench.limit import measure_bandwidth
from labkit.bench.peers.compiled_loop import COMPILED, compiled_peer
from labkit.bench.peers.continuous import CONTINUOUS, continuous_peer
from labkit.bench.peers.generate import (
    DYNAMIC,
    PADDED,
    STATIC,
    as_transformers,
    generate_peer,
    quiet_transformers,
    with_padded_vocabulary,
)
from labkit.bench.peers.run import CannotServeError, Peer, PeerRun, labkit_peer
from labkit.bench.peers.vllm import VLLM, vllm_peer
from labkit.bench.record import make_record, own_target, write_own
from labkit.bench.workload import Workload
from labkit.engine.device import default_dtype, pick_device
from labkit.errors import OptionError
from labkit.results.peers import PeerSample

RUNGS = ("00", "05", "08", "09", "10")
PEERS = {  # by the names of --others
    "dynamic": DYNAMIC,
    "static": STATIC,
    "padded": PADDED,
    "continuous": CONTINUOUS,
    "loop": COMPILED,
    "vllm": VLLM,
}


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

    rungs: tuple[str, ...] = rungs_flag(RUNGS)
    others: tuple[str, ...] = flag(
        tuple(PEERS), "these other engines run", Kind(names_of(PEERS), "NAME,NAME,...")
    )
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        """Raises OptionError unless requests make all their tokens."""
        if not self.no_stop_on_eos:
            raise OptionError("peers compares runs of equal length: add --no-stop-on-eos")
        path = own_target(self, "peers", pick_device(self.device))
        workload = workload_of(self)
        bandwidth = measure_bandwidth(workload.model.device)
        limit = workload.limit(bandwidth.copy)
        with tqdm(unit=" runs") as bar:
            others = [PEERS[name] for name in self.others]
            ran = run_peers(workload, self.rungs, self.rounds, bar.update, others, self.mark_interrupted)
        print(f"{workload.model}, {self.num_requests} requests, batches of {self.max_batch_size}")
        settings = {
            **self.settings,
            "left_out": ran.left_out,
            "static_cache_compiled": ran.compiled,
            "versions": peer_versions(),
        }
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
        record = make_record("peers", workload.model.device, bandwidth, settings, samples)
        print(record.table().to_string())
        for name in record.engines:
            equal = f"same tokens in {record.same_tokens(name)} of {self.num_requests} requests"
            print(f"{record.comparison(name, f'labkit {self.rungs[-1]}')}\n  {equal}")
        print(f"Limit of decode: {limit.tokens_per_second:,.0f} tokens/s at {bandwidth}")
        for name, reason in ran.left_out.items():
            print(f"Left out: {name} ({reason})")
        write_own(record, path)


def decode_rate(run: PeerRun, in_one_batch: bool) -> float | None:
    """Tokens per second after the first tokens; None where requests still waited then, or none is known."""
    if run.first_token_seconds is None or not in_one_batch or run.tokens == len(run.token_ids):
        return None
    return (run.tokens - len(run.token_ids)) / (run.seconds - run.first_token_seconds)


def peer_versions() -> dict[str, str]:
    """The versions of the peers' packages that are installed, by package.

    With that of flash attention transformers' continuous batching is another engine than without.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("transformers", "vllm", "flash_attn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
