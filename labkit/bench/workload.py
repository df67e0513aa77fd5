"""A workload: requests, and the engine that a run of them gets."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from labkit.bench.limit import DecodeLimit, workload_limit
from labkit.engine import Completion, EngineStats, InferenceEngine, SamplingParams, Timing
from labkit.engine.config import EIGHT_AT_A_TIME, FITTED, CacheConfig, SchedulerConfig
from labkit.engine.parts import NO_PARTS, Part
from labkit.errors import OptionError
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.results.runs import LatencyMetrics, Run

LEAST_POSITIONS = 1024  # GPT-2's; a model of more gets no more than these, or its longest request


@dataclass(frozen=True)
class Request:
    """What one client asks for: a prompt, as text or as token ids, and how its tokens are picked.

    arrives_at: seconds after the workload's start.
    """

    prompt: str | tuple[int, ...]
    params: SamplingParams
    arrives_at: float = 0.0


@dataclass(frozen=True)
class Workload:
    """Requests, in order of arrival, and how they are served: eight at a time by default."""

    model: LanguageModel
    requests: tuple[Request, ...]
    device: torch.device | str | None = None
    scheduler: SchedulerConfig = EIGHT_AT_A_TIME
    cache: CacheConfig = CacheConfig(prefix_cache=False)

    def __post_init__(self) -> None:
        if self.scheduler.max_batch_size is FITTED:  # peers and limits need it, too
            batch_size = EIGHT_AT_A_TIME.max_batch_size
            object.__setattr__(self, "scheduler", replace(self.scheduler, max_batch_size=batch_size))

    @classmethod
    def alike(
        cls,
        model: LanguageModel,
        prompts: Sequence[str | tuple[int, ...]],
        max_new_tokens: int,
        **settings: Any,
    ) -> "Workload":
        """Greedy requests that arrive together and make equally many tokens, whatever comes. settings: of the
        workload: device, scheduler, cache."""
        params = SamplingParams(max_new_tokens, stop_on_eos=False)
        return cls(model, tuple(Request(prompt, params) for prompt in prompts), **settings)

    @classmethod
    def at_once(
        cls, model: LanguageModel, requests: tuple[Request, ...], max_batch_size: int, prefix_cache: bool
    ) -> "Workload":
        """These requests on the model's device, with as many admitted in a step as can be decoded together,
        whatever the length of their prompts."""
        encode = cache(model.tokenizer.encode)
        prompts = [encode(r.prompt) if isinstance(r.prompt, str) else r.prompt for r in requests]
        scheduler = SchedulerConfig(
            max_batch_size=max_batch_size,
            prefill_max_batch_size=max_batch_size,
            prefill_max_tokens=max(1, sum(map(len, prompts))),
        )
        return cls(model, requests, model.device, scheduler, CacheConfig(prefix_cache=prefix_cache))

    @property
    def max_new_tokens(self) -> tuple[int, ...]:
        """The most tokens that each request makes."""
        return tuple(request.params.max_new_tokens for request in self.requests)

    @property
    def has_arrivals(self) -> bool:
        """Whether a request arrives later than the start."""
        return any(request.arrives_at for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest text: a prompt and its answer."""
        return max(map(sum, zip(map(len, self.prompt_ids()), self.max_new_tokens, strict=True)))

    @property
    def max_positions(self) -> int:
        """Tokens of the longest text that an engine for this workload takes."""
        return min(self.model.config.max_positions, max(LEAST_POSITIONS, self.longest))

    def make_engine(self, options: EngineOptions, parts: Mapping[str, Part] = NO_PARTS) -> InferenceEngine:
        """A fresh engine with an empty cache, as large as this workload needs. parts: as `InferenceEngine`
        takes them.

        Raises OptionError or RequestError if the engine or a request cannot be had.
        """
        engine = InferenceEngine(
            self.model, options, device=self.device, parts=parts, **self.engine_settings()
        )
        for request in self.requests:
            engine.check_prompt(request.prompt, request.params)
        return engine

    def engine_settings(self) -> dict[str, Any]:
        """What an engine takes of memory and requests for this workload: its `cache` and `scheduler`."""
        blocks_per_request = -(-self.longest // self.cache.block_size)
        batch_size = min(len(self.requests), self.scheduler.max_batch_size)
        cache = self.cache
        if cache.max_positions is None:
            cache = replace(cache, max_positions=self.max_positions)
        if not cache.prefix_cache and cache.max_blocks_per_layer is None:
            cache = replace(cache, max_blocks_per_layer=batch_size * blocks_per_request)
        return {"cache": cache, "scheduler": self.scheduler}

    def limit(self, bandwidth: float, kept: torch.dtype | None = None, run: Run | None = None) -> DecodeLimit:
        """The least that decoding can take: of the tokens of a run, or of all that requests may make.

        bandwidth: bytes per second. kept: the dtype of the cache, by default the model's.
        """
        lengths = ([len(prompt) for prompt in self.prompt_ids()], self.max_new_tokens)
        if run is not None:
            lengths = run.prompt_lens, run.new_tokens
        most = self.scheduler.max_batch_size
        return workload_limit(self.model.network, *lengths, most, bandwidth, kept)

    def prompt_ids(self) -> list[Sequence[int]]:
        """The prompts as token ids."""
        encode, prompts = self.model.tokenizer.encode, [request.prompt for request in self.requests]
        return [encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def serve(self, engine: InferenceEngine) -> tuple[list[Completion], float]:
        """Serve the requests, `engine.step()` in a loop, with no prefix in the cache: the completions as they
        came, and the seconds from the first arrival on. Raises OptionError if a request arrives later."""
        if self.has_arrivals:
            raise OptionError(
                "requests that arrive one after another are served by `streaming` and `loads` only"
            )
        if engine.prefix_cache is not None:
            engine.prefix_cache.clear()  # or the warm-up's prompts would be found there
        for request in self.requests:
            engine.add_request(request.prompt, request.params)
        completions: list[Completion] = []
        while engine.has_work:
            completions += engine.step().completions
            ended = time.perf_counter()  # the last token's own time lies before the end of its step
        return completions, ended - min(completion.timing.arrived for completion in completions)

    def run(self, engine: InferenceEngine) -> Run:
        """A run of the requests. Raises OptionError as `serve` does."""
        before = engine.stats()
        completions, seconds = self.serve(engine)
        return make_run(before, engine.stats(), completions, latency_metrics(completions), seconds)


def make_run(
    before: EngineStats,
    after: EngineStats,
    completions: Sequence[Completion],
    latency: LatencyMetrics,
    seconds: float,
) -> Run:
    """A run from the engine's counters before and after it, its completions and their latency.

    seconds: from the first arrival until the last token was handed out, so that the engine's own shares of
    it, prefill and decoding, add up to no more.
    """
    counted = {
        name: getattr(after.counters, name) - getattr(before.counters, name)
        for name in ("prefill_seconds", "decode_seconds", "decoded_tokens", "decode_steps")
    }
    return Run(
        seconds=seconds,
        append_paths=difference(before.append_paths, after.append_paths),
        prompt_lens=tuple(len(c.prompt_token_ids) for c in completions),
        new_tokens=tuple(len(c.token_ids) for c in completions),
        latency=latency,
        **counted,
    )


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """How often each append path ran between two readings of the engine's counter; those that ran."""
    return dict(Counter(after) - Counter(before))


def latency_metrics(completions: Sequence[Completion]) -> LatencyMetrics:
    """Latency metrics of requests served together. Raises ValueError if one of them made no token."""
    timings = [completion.timing for completion in completions]
    for completion, timing in zip(completions, timings, strict=True):
        if not timing.tokens:
            raise ValueError(f"request {completion.request_id} made no token ({completion.finish_reason})")
    return metrics_of(timings, [len(timing.tokens) for timing in timings])


def metrics_of(timings: Sequence[Timing], num_tokens: Sequence[int]) -> LatencyMetrics:
    """Latency metrics from the moments at which requests got tokens, one at a time or several.

    num_tokens: how many each got in all its moments; each has one at least.
    """
    with_numbers = list(zip(timings, num_tokens, strict=True))
    return LatencyMetrics(
        ttft=tuple(t.tokens[0] - t.arrived for t in timings),
        queue_wait=tuple(t.admitted - t.arrived for t in timings),
        tpot=tuple((t.tokens[-1] - t.tokens[0]) / (n - 1) for t, n in with_numbers if n > 1),
        itl=tuple(later - earlier for t in timings for earlier, later in pairwise(t.tokens)),
        latency=tuple(t.tokens[-1] - t.arrived for t in timings),
        tokens=sum(num_tokens),
        span=max(t.tokens[-1] for t in timings) - min(t.arrived for t in timings),
    )
