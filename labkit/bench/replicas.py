"""Several replicas behind one door, which readers ask over HTTP."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.bench.arguments import BATCH, BATCH_LIST, COUNT, SECONDS, ServedFlags, names_of
from labkit.bench.flags import ByDevice, Kind, flag
from labkit.bench.http import Readers, bodies_of, said
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import Asked, make_load
from labkit.bench.record import make_record, write_record
from labkit.bench.workload import Request
from labkit.engine import SamplingParams
from labkit.engine.device import pick_device
from labkit.engine.stats import EngineCounters
from labkit.errors import OptionError
from labkit.model import load_model
from labkit.results.http import ReplicasRun
from labkit.results.record import Record
from labkit.serve.affinity import POLICIES

if TYPE_CHECKING:  # it needs Ray, an extra
    from labkit.serve.ray_app import AppArgs


HOST, NAME = "127.0.0.1", "labkit"
UNTIL_TOLD = 0.5  # seconds after which a replica's engine has told its state
BEGIN_ALIKE = ("shared-prefix", "assistant")
ASKED = ("ragged", "prompt-heavy", *BEGIN_ALIKE)  # loads with prompts of their own


@dataclass
class ServeReplicas(ServedFlags):
    """Serve readers by one, two or more replicas behind one door, and say what each replica adds.

    Every number of replicas gets --requests for each of them, over HTTP, through Ray Serve and its ingress:
    twice the replicas serve twice the readers. Each policy routes the same loads; one replica needs none.
    Prompts are new in each run. *Tokens reused* are those of all prompts that a replica found in its prefix
    cache. For --load shared-prefix take --prefixes, so many system prompts, and --within, or each is asked
    for again before it is there; other loads come all at once. Needs what `pip install labkit[cluster]`
    brings. The record of each load is written after every run.
    """

    replicas: tuple[int, ...] = flag((1, 2), "this many replicas serve, one number after another", BATCH_LIST)
    policies: tuple[str, ...] = flag(
        ("prefix",),
        f"requests are routed so, in turn: {', '.join(POLICIES)}",
        Kind(names_of(POLICIES), "POLICY,..."),
    )
    load: tuple[str, ...] = flag(
        ("ragged",), f"requests are so, in turn: {', '.join(ASKED)}", Kind(names_of(ASKED), "LOAD,...")
    )
    prefixes: int = flag(1, "this many loads, each of another seed, are mixed", COUNT)
    requests: int = flag(ByDevice(512, 16), "each replica gets this many requests on average", COUNT)
    max_new_tokens: int = flag(ByDevice(200, 32), "a request makes at most this many tokens", COUNT)
    max_batch_size: int = flag(ByDevice(64, 8), "each replica decodes at most this many together", BATCH)
    within: float = flag(
        0.0,
        "where prompts begin alike, readers ask one by one in this time (default: %(default)s, at once)",
        SECONDS,
    )
    ingresses: int = flag(1, "the requests of all readers go through this many", COUNT)
    clients: int = flag(ByDevice(8, 1), "the readers are shared by this many processes", COUNT)
    rounds: int = flag(3, "each application serves this many runs", COUNT)
    port: int = flag(8123, "Ray's proxy listens here", COUNT)

    def target(self, load: str) -> Path:
        """The file of a load's record: --json, which of several loads gets the load's name, too."""
        assert self.json is not None
        one = len(self.load) == 1
        return self.json if one else self.json.with_stem(f"{self.json.stem}_{load.replace('-', '_')}")

    def run(self) -> None:
        """Raises OptionError without Ray, and StreamError if a reader is not served."""
        if find_spec("ray") is None:
            raise OptionError("this needs Ray: pip install -e '.[cluster]'")
        from labkit.serve.ray_app import AppArgs

        device, samples = pick_device(self.device), list[tuple[str, ReplicasRun]]()
        bandwidth, config = measure_bandwidth(device), load_model(self.model).config

        def about(load: str) -> dict[str, Any]:
            return {"load": load, "within": self.within if load in BEGIN_ALIKE else 0.0}

        def record(load: str) -> Record:
            runs = [ran for of, ran in samples if of == load]
            return make_record("replicas", device, bandwidth, self.settings | about(load), runs)

        def requests(load: str, replicas: int, seed: int) -> tuple[Request, ...]:
            params = SamplingParams(self.max_new_tokens, stop_on_eos=False)
            alike = (Request((), params),) * (replicas * self.requests)
            made = mixed(load, self.prefixes, Asked(alike, config, seed))
            if (longest := max(len(r.prompt) + r.params.max_new_tokens for r in made)) > config.max_positions:
                raise OptionError(
                    f"load {load} has texts of {longest} tokens: take a smaller --max-new-tokens"
                )
            return made

        app = AppArgs(
            model=self.model,
            rung=self.rung,
            served_model_name="replicas",
            max_batch_size=self.max_batch_size,
            gpus=1 if device.type == "cuda" else 0,
            ingresses=self.ingresses,
            max_ongoing_requests=max(self.replicas) * self.requests,
            max_queued_requests=-1,
        )
        with (
            Readers(self.clients) as readers,
            Cluster(self.port, self.ingresses, max(self.replicas)) as cluster,
            self.until_interrupted(samples),
        ):
            for replicas in self.replicas:
                for policy in self.policies if replicas > 1 else self.policies[:1]:
                    said(f"replicas: {replicas}, {policy}: the application starts")
                    its_args = app.model_copy(update={"replicas": replicas, "policy": policy})
                    with cluster.serving(its_args) as door:
                        for load, number in product(self.load, range(-1, self.rounds)):
                            ran = door.run(
                                readers, requests(load, replicas, number + 1), about(load)["within"]
                            )
                            said(f"{load}: {in_words(ran)}")
                            if number < 0:  # to warm up
                                continue
                            samples.append((load, ran))
                            if self.json:
                                write_record(record(load), self.target(load))
        for load in dict.fromkeys(load for load, _ in samples):
            print(f"{self.model}, rung {self.rung}, {load}; times in milliseconds")
            print(record(load).table().to_string())


def in_words(run: ReplicasRun) -> str:
    rate, answered = f"{run.rate:,.0f} tokens/s in {run.seconds:.2f} s", "+".join(map(str, run.answered))
    reused = f"{run.reused_share:.1%} of the prompts' tokens reused"
    return f"replicas: {run.replicas}, {run.side}: {answered} requests, {rate}, {reused}"


def mixed(load: str, prefixes: int, asked: Asked) -> tuple[Request, ...]:
    """So many loads of that name, each of its own seed, whose requests come in random order.

    Of a load in which prompts begin alike these are as many beginnings. Raises OptionError as `make_load`.
    """
    if prefixes == 1:
        return make_load(load, asked)
    num = -(-len(asked.alike) // prefixes)
    seeds = range(asked.seed * prefixes, (asked.seed + 1) * prefixes)
    loads = [make_load(load, replace(asked, alike=asked.alike[:num], seed=seed)) for seed in seeds]
    requests = [each for turn in zip(*loads, strict=True) for each in turn][: len(asked.alike)]
    asked.numbers().shuffle(requests)  # or a number of replicas that divides theirs would get each its own
    return tuple(requests)


class Cluster:
    """A Ray of this machine with a port, which serves one application after another. Use a `with` block.

    ingresses: of the applications. Ray's own proxy carries little more than one, so before several stands
    HAProxy, which Ray brings.
    """

    def __init__(self, port: int, ingresses: int, most_replicas: int) -> None:
        self.port = port
        if ingresses > 1:
            os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"  # which is read when Ray is imported
            os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"  # nobody waits for an answer
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray
        from ray import serve

        self._ray, self._serve = ray, serve
        cores = max(os.cpu_count() or 1, most_replicas)  # Ray counts them only
        ray.init(_node_ip_address=HOST, num_cpus=cores, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"host": HOST, "port": port})

    @contextmanager
    def serving(self, args: "AppArgs") -> Iterator["Door"]:
        """An application while the block lasts."""
        from labkit.serve.ray_app import build

        self._serve.run(build(args), name=NAME)
        try:
            yield Door(self.port, args, self._serve.get_deployment_handle("Replica", NAME))
        finally:
            self._serve.delete(NAME)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


class Door:
    """An application that serves at a port, and what its replicas say of themselves."""

    def __init__(self, port: int, args: "AppArgs", handle: object) -> None:
        self._port, self._args, self._handle = port, args, handle

    def run(self, readers: Readers, requests: tuple[Request, ...], within: float) -> ReplicasRun:
        """Have each request asked for by a reader of its own, evenly over so many seconds. Raises StreamError
        if one is not served."""
        before = self.counters()
        bodies = bodies_of(self._args.served_model_name, requests)
        times = [within * i / len(requests) for i in range(len(requests))]
        run = readers.run(self._args.policy, self._port, bodies, times)
        time.sleep(UNTIL_TOLD)
        pairs = [(before[name], now) for name, now in self.counters().items()]
        return ReplicasRun(
            **vars(run),
            replicas=self._args.replicas,
            prompt_tokens=sum(len(request.prompt) for request in requests),
            reused=tuple(now.reused_tokens - was.reused_tokens for was, now in pairs),
            answered=tuple(sum(now.finished.values()) - sum(was.finished.values()) for was, now in pairs),
        )

    def counters(self) -> dict[str, EngineCounters]:
        """What the engine of each replica has counted so far."""
        told = self._handle.broadcast("stats").results(timeout_s=60)  # type: ignore[attr-defined]
        return {each.replica: each.engine.counters for each in told}
