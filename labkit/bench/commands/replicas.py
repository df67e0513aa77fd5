"""replicas: serves readers by one, two or more replicas behind one door, and says what each replica adds.

Every number of replicas gets --requests for each of them, over HTTP, through Ray Serve and its ingress: twice
the replicas serve twice the readers. Each policy routes the same requests; one replica needs none. Prompts
are new in each run. *Tokens reused* are those of all prompts that a replica found in its prefix cache. With
--load shared-prefix take --prefixes, so many system prompts, and --within, or each is asked for again before
it is there. Needs what `pip install labkit[cluster]` brings. The record is written after every application.
"""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec

from labkit.bench.commands.arguments import BATCH, BATCH_LIST, COUNT, DeviceFlags, RungFlag
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.commands.http import said, seconds
from labkit.bench.http import Readers
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import LOADS, Asked
from labkit.bench.record import make_record, write_record
from labkit.bench.replicas import Cluster, mixed
from labkit.bench.workload import Request
from labkit.engine import SamplingParams
from labkit.engine.device import pick_device
from labkit.errors import OptionError
from labkit.model import load_model
from labkit.results.record import Record
from labkit.results.replicas import ReplicasRun
from labkit.serve.affinity import POLICIES


def policy_list(text: str) -> tuple[str, ...]:
    """The type of --policies."""
    if unknown := set(names := text.split(",")) - POLICIES.keys():
        raise argparse.ArgumentTypeError(f"no policy {unknown.pop()!r}; there are {', '.join(POLICIES)}")
    return tuple(names)


@dataclass
class Settings(RungFlag, DeviceFlags):
    """The command's flags."""

    model: str = flag(
        ByDevice("random:gpt2", "data/tiny-gpt2"),
        "a directory, a hub id, or random weights such as random:gpt2",
        Kind(str, "MODEL"),
    )
    replicas: tuple[int, ...] = flag((1, 2), "this many replicas serve, one number after another", BATCH_LIST)
    policies: tuple[str, ...] = flag(
        ("prefix",),
        f"requests are routed so, in turn: {', '.join(POLICIES)}",
        Kind(policy_list, "POLICY,..."),
    )
    load: str = flag("ragged", "requests are as labkit/bench/loads.py says", choices=LOADS)
    prefixes: int = flag(1, "this many loads, each of another seed, are mixed", COUNT)
    requests: int = flag(ByDevice(512, 16), "each replica gets this many requests on average", COUNT)
    max_new_tokens: int = flag(ByDevice(256, 32), "a request makes at most this many tokens", COUNT)
    max_batch_size: int = flag(ByDevice(64, 8), "each replica decodes at most this many together", BATCH)
    within: float = flag(
        0.0,
        "the readers ask one after another in this time (default: %(default)s, all at once)",
        Kind(seconds, "SECONDS"),
    )
    ingresses: int = flag(1, "the requests of all readers go through this many", COUNT)
    clients: int = flag(ByDevice(8, 1), "the readers are shared by this many processes", COUNT)
    rounds: int = flag(3, "each application serves this many runs", COUNT)
    port: int = flag(8123, "Ray's proxy listens here", COUNT)


def run(args: Settings) -> None:
    """Start every application in turn, say how its runs went, and print a table; write a record if one is
    wanted.

    Raises OptionError without Ray, and StreamError if a reader is not served.
    """
    require_ray()
    from labkit.serve.ray_app import AppArgs

    device, samples = pick_device(args.device), list[ReplicasRun]()
    bandwidth, vocabulary = measure_bandwidth(device), load_model(args.model).config

    def record() -> Record:
        return make_record("replicas", device, bandwidth, args.settings, samples)

    def requests(replicas: int, seed: int) -> tuple[Request, ...]:
        params = SamplingParams(args.max_new_tokens, stop_on_eos=False)
        alike = (Request((), params),) * (replicas * args.requests)
        return mixed(args.load, args.prefixes, Asked(alike, vocabulary, seed))

    app = AppArgs(
        model=args.model,
        rung=args.rung,
        served_model_name="replicas",
        max_batch_size=args.max_batch_size,
        gpus=1 if device.type == "cuda" else 0,
        ingresses=args.ingresses,
        max_ongoing_requests=max(args.replicas) * args.requests,
        max_queued_requests=-1,
    )
    with (
        Readers(args.clients) as readers,
        Cluster(args.port, args.ingresses, max(args.replicas)) as cluster,
        args.until_interrupted(samples),
    ):
        for replicas in args.replicas:
            for policy in args.policies if replicas > 1 else args.policies[:1]:
                said(f"replicas: {replicas}, {policy}: the application starts")
                with cluster.serving(app.model_copy(update={"replicas": replicas, "policy": policy})) as door:
                    for number in range(-1, args.rounds):  # the first to warm up
                        ran = door.run(readers, requests(replicas, number + 1), args.within)
                        said(in_words(ran))
                        samples += [ran] if number >= 0 else []
                if args.json:
                    write_record(record(), args.json)
    print(
        f"{args.model}, rung {args.rung}, {args.load}; times in milliseconds\n{record().table().to_string()}"
    )


def require_ray() -> None:
    """Raises OptionError unless Ray is installed."""
    if find_spec("ray") is None:
        raise OptionError("this needs Ray: pip install -e '.[cluster]'")


def in_words(run: ReplicasRun) -> str:
    """A run in one line."""
    rate, share = f"{run.rate:,.0f} tokens/s in {run.seconds:.2f} s", f"{run.reused_share:.1%}"
    return f"replicas: {run.replicas}, {run.side}: {rate}, {share} of the prompts' tokens reused"
