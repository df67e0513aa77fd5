"""What /metrics tells Prometheus: the engine as it is now, and how long clients waited."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from labkit.engine import Completion, EngineStats

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKEN_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """The numbers of one server. `registry` holds them all."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(stats))
        self.requests = Counter(
            "labkit_requests", "Answers that ended, by how", ["finish_reason"], registry=self.registry
        )
        self.refused = Counter(
            "labkit_refused_requests",
            "Requests that were refused, failed or were left, by HTTP status (499: the client left)",
            ["status"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "labkit_time_to_first_token_seconds",
            "From an answer's arrival to its first token",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.itl = Histogram(
            "labkit_inter_token_latency_seconds",
            "Between two tokens of an answer, its own average",
            buckets=TOKEN_SECONDS,
            registry=self.registry,
        )

    def observe(self, completion: Completion) -> None:
        """Count an answer that ended."""
        self.requests.labels(str(completion.finish_reason)).inc()
        timing = completion.timing
        if timing.ttft is not None:
            self.ttft.observe(timing.ttft)
        if timing.itl is not None:
            self.itl.observe(timing.itl)


class EngineCollector(Collector):
    """An engine's queues, blocks and counters, read when they are asked for."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The state at this moment; a step may be under way."""
        stats = self._stats()
        gauges = {
            "waiting_requests": ("Requests that wait for a place in the batch", stats.waiting),
            "joining_requests": ("Requests whose prompts are being computed", stats.joining),
            "running_requests": ("Requests that get a token each step", stats.running),
            "kv_blocks": ("Blocks of a layer's pool", stats.blocks_per_layer),
            "kv_blocks_free": ("Blocks of it that are free", stats.free_blocks),
            "prefix_entries": (
                "Kept for prompts that begin alike, from rung 14 on blocks",
                stats.prefix_entries,
            ),
        }
        counters = {
            "generated_tokens": ("Tokens made", stats.counters.generated_tokens),
            "prefill_tokens": ("Prompt tokens computed", stats.counters.prefill_tokens),
            "reused_tokens": ("Prompt tokens found in the prefix cache", stats.counters.reused_tokens),
            "preemptions": (
                "Requests that lost their blocks and were computed anew",
                stats.counters.preemptions,
            ),
            "steps": ("Steps of the engine", stats.counters.steps),
        }
        for name, (said, value) in gauges.items():
            yield GaugeMetricFamily(f"labkit_{name}", said, value)
        for name, (said, value) in counters.items():
            yield CounterMetricFamily(f"labkit_{name}", said, value)
