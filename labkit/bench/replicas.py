"""Several replicas behind one door, which readers ask over HTTP."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from labkit.bench.flags import BATCH, LONGEST, ByDevice, Kind, ServedFlags, flag, names_of
from labkit.bench.http import Readers, bodies_of, said
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import Asked, make_load
from labkit.bench.workload import Request
from labkit.checks import real_number
from labkit.engine import SamplingParams
from labkit.engine.device import pick_device
from labkit.engine.stats import EngineCounters
from labkit.errors import OptionError
from labkit.model import load_model
from labkit.results.served import ReplicasRun
from labkit.serve.affinity import POLICIES

if TYPE_CHECKING:  # it needs Ray, an extra
    from labkit.serve.ray_app import AppArgs


HOST, NAME = "127.0.0.1", "labkit"
UNTIL_TOLD = 0.5  # seconds after which a replica's engine has told its state
ASKED = ("ragged", "prompt-heavy", "shared-prefix", "assistant")  # loads with prompts of their own


@dataclass
class ServeReplicas(ServedFlags):
    """Serve readers by one, two or more replicas behind one door, and say what each replica adds.

    Every number of replicas gets --requests for each of them, over HTTP, through Ray Serve and its ingress:
    twice the replicas serve twice the readers. Each policy routes the same loads; one replica needs none.
    Prompts are new in each run. *Tokens reused* are those of all prompts that a replica found in its prefix
    cache. For --load shared-prefix take --prefixes, so many system prompts, and --within, or each is asked
    for again before it is there. Needs what `pip install labkit[cluster]` brings. The record is written after
    every run.
    """

    kind = "replicas"

    replicas: tuple[int, ...] = flag((1, 2), "this many replicas serve, one number after another")
    policies: tuple[str, ...] = flag(
        ("prefix",),
        f"requests are routed so, in turn: {', '.join(POLICIES)}",
        Kind(names_of(POLICIES), "POLICY,..."),
    )
    load: str = flag("ragged", "requests are so", choices=ASKED)
    prefixes: int = flag(1, "this many loads, each of another seed, are mixed")
    requests: int = flag(ByDevice(512, 16), "each replica gets this many requests on average")
    max_new_tokens: int = flag(ByDevice(200, 32), "a request makes at most this many tokens")
    max_batch_size: int = flag(ByDevice(64, 8), "each replica decodes at most this many together", BATCH)
    within: float = flag(
        0.0,
        "readers ask one by one in this time (default: %(default)s, all at once)",
        Kind(real_number(0, LONGEST), "SECONDS"),
    )
    ingresses: int = flag(1, "the requests of all readers go through this many")
    clients: int = flag(ByDevice(8, 1), "the readers are shared by this many processes")
    rounds: int = flag(3, "each application serves this many runs")
    port: int = flag(8123, "Ray's proxy listens here")

    def run(self) -> None:
        """Raises OptionError without Ray, and StreamError if a reader is not served."""
        if find_spec("ray") is None:
            raise OptionError("this needs Ray: pip install -e '.[cluster]'")
        from labkit.serve.ray_app import AppArgs

        device, samples = pick_device(self.device), list[ReplicasRun]()
        bandwidth, config = measure_bandwidth(device), load_model(self.model).config
        params = SamplingParams(self.max_new_tokens, stop_on_eos=False)
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
            cluster(self.port, self.ingresses, max(self.replicas)),
            self.until_interrupted(samples),
        ):
            for replicas in self.replicas:
                alike = (Request((), params),) * (replicas * self.requests)
                for policy in self.policies if replicas > 1 else self.policies[:1]:
                    said(f"replicas: {replicas}, {policy}: the application starts")
                    its_args = app.model_copy(update={"replicas": replicas, "policy": policy})
                    with serving(its_args, self.port) as door:
                        for number in range(self.rounds + 1):  # the first, to warm up, is not kept
                            requests = mixed(self.load, self.prefixes, Asked(alike, config, number))
                            ran = door.run(readers, requests, self.within)
                            said(in_words(ran))
                            if number:
                                samples.append(ran)
                                self.record_if_asked(samples, bandwidth)
        print(f"{self.model}, rung {self.rung}, {self.load}; times in milliseconds")
        record = self.record(samples, bandwidth)
        print(record.table().to_string())
        self.write(record)


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


@contextmanager
def cluster(port: int, ingresses: int, most_replicas: int) -> Iterator[None]:
    """A Ray of this machine whose applications answer at the port, while the block lasts.

    ingresses: of the applications. Ray's own proxy carries little more than one, so before several stands
    HAProxy, which Ray brings.
    """
    if ingresses > 1:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"  # which is read when Ray is imported
        os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"  # nobody waits for an answer
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray
    from ray import serve

    cores = max(os.cpu_count() or 1, most_replicas)  # Ray counts them only
    ray.init(_node_ip_address=HOST, num_cpus=cores, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": HOST, "port": port})
        yield
    finally:
        ray.shutdown()


@contextmanager
def serving(args: "AppArgs", port: int) -> Iterator["Door"]:
    """An application while the block lasts."""
    from ray import serve

    from labkit.serve.ray_app import build

    serve.run(build(args), name=NAME)
    try:
        yield Door(port, args, serve.get_deployment_handle("Replica", NAME))
    finally:
        serve.delete(NAME)


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
