"""Replicas behind one door, on a Ray of this machine, and the requests that readers send them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.bench.http import Readers, bodies_of
from labkit.bench.loads import Asked, make_load
from labkit.bench.workload import Request
from labkit.engine.stats import EngineCounters
from labkit.results.replicas import ReplicasRun

if TYPE_CHECKING:  # it needs Ray, an extra
    from labkit.serve.ray_app import AppArgs

HOST, NAME = "127.0.0.1", "labkit"
UNTIL_TOLD = 0.5  # seconds after which a replica's engine has told its state


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
