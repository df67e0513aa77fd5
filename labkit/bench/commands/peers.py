"""peers: runs the same requests through labkit and other people's engines, with the same weights, in turn.

The engines are labkit at a few rungs; transformers' `generate` with its dynamic and its static cache (the
latter also with a padded vocabulary); its continuous batching; a loop over a compiled step; and vLLM where it
is installed. Every engine has a warm-up that is not measured. A run is timed from the requests' token ids to
the last token id. Decode rates leave out the time to the first tokens, and are shown where one batch holds
all requests. An engine that cannot serve the requests is named, with the reason.
"""

from dataclasses import dataclass

from tqdm import tqdm

from labkit.bench.commands.arguments import (
    RecordFlags,
    WorkloadFlags,
    names_of,
    rounds_flag,
    rungs_flag,
    workload_of,
)
from labkit.bench.commands.flags import Kind, flag
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.limit import measure_bandwidth
from labkit.bench.peers.together import (
    COMPILED,
    CONTINUOUS,
    DYNAMIC,
    PADDED,
    STATIC,
    VLLM,
    PeerRun,
    run_peers,
)
from labkit.bench.record import make_record
from labkit.engine.device import pick_device
from labkit.errors import OptionError
from labkit.results.peers import PeerSample

RUNGS = ("00", "05", "08", "09", "10")
OTHERS = {
    "dynamic": DYNAMIC,
    "static": STATIC,
    "padded": PADDED,
    "continuous": CONTINUOUS,
    "loop": COMPILED,
    "vllm": VLLM,
}


@dataclass
class Settings(RecordFlags, WorkloadFlags):
    rungs: tuple[str, ...] = rungs_flag(RUNGS)
    others: tuple[str, ...] = flag(
        tuple(OTHERS), "these other engines run", Kind(names_of(OTHERS), "NAME,NAME,...")
    )
    rounds: int = rounds_flag(3)


def run(args: Settings) -> None:
    """Raises OptionError unless all requests are there at the start and make all their tokens."""
    if not args.no_stop_on_eos:
        raise OptionError("peers compares runs of equal length: add --no-stop-on-eos")
    path = own_target(args, "peers", pick_device(args.device))
    workload = workload_of(args)
    workload.require_all_at_once()
    bandwidth = measure_bandwidth(workload.model.device)
    limit = workload.requested_limit(bandwidth.copy)
    with tqdm(unit=" runs") as bar:
        others = [OTHERS[name] for name in args.others]
        ran = run_peers(workload, args.rungs, args.rounds, bar.update, others, args.mark_interrupted)
    print(
        f"{workload.model}, {len(workload.requests)} requests, batches of {workload.scheduler.max_batch_size}"
    )
    settings = {
        **args.settings,
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
    print(record.table().join(record.comparison_table(f"labkit {args.rungs[-1]}")).to_string())
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
