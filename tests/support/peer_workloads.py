"""Workloads that peers are given, on the CPU; in float32, where no tie can break either way."""

from dataclasses import replace

from labkit import SamplingParams, SchedulerConfig, load_model
from labkit.bench.parity import dense_tokens
from labkit.bench.workload import Request, Workload

RAGGED = ((5, 6, 7, 8, 9), (10,), (11, 12))
LEVEL = ((5, 6, 7), (8, 9, 10), (11, 12, 13), (14, 15, 16))
DRAWS = SamplingParams(6, temperature=0.8, top_p=0.95, seed=3, stop_on_eos=False)
ALMOST_GREEDY = SamplingParams(6, temperature=0.8, top_p=1e-6, seed=3, stop_on_eos=False)


def workload(prompts=RAGGED, new_tokens: int = 4) -> Workload:
    """Greedy requests, in batches of two."""
    return Workload.alike(
        load_model("data/tiny-gpt2"),
        prompts,
        new_tokens,
        device="cpu",
        scheduler=SchedulerConfig(max_batch_size=2, prefill_max_batch_size=2),
    )


def with_params(work: Workload, *params: SamplingParams) -> Workload:
    """The workload, its requests' parameters replaced, one after another."""
    prompts = [request.prompt for request in work.requests]
    return replace(work, requests=tuple(map(Request, prompts, params)))


def arriving(work: Workload, gap: float = 0.01) -> Workload:
    """The workload, each request `gap` seconds after the one before."""
    later = (replace(request, arrives_at=i * gap) for i, request in enumerate(work.requests))
    return replace(work, requests=tuple(later))


def expected(work: Workload) -> tuple[tuple[int, ...], ...]:
    """The greedy tokens of the requests, without any cache."""
    lengths = work.max_new_tokens
    all_ids = dense_tokens(work.model, work.prompt_ids(), max(lengths))
    return tuple(ids[:length] for ids, length in zip(all_ids, lengths, strict=True))
