"""Records in memory, whose samples say only what a test is about."""

from collections.abc import Iterable

from labkit.results import (
    KINDS,
    CostCard,
    DeviceCounts,
    Host,
    HostCounts,
    HostTime,
    LatencyMetrics,
    Record,
    Run,
    RunsRecord,
    TracedStep,
)
from labkit.results.cost_cards import CardKey, RungCard
from labkit.results.host_time import RungHostTime
from labkit.results.runs import RungRun

HOST = Host("a GPU", None, "a CPU", 8, "3.11", "2.9", None)


def record_of(kind: str, samples: Iterable, **settings: object) -> Record:
    """A record of that kind."""
    about: dict[str, object] = {"kind": kind, "host": HOST, "bandwidth": 1e9, "read_bandwidth": None}
    about |= {"date": "2026-01-01T00:00:00+00:00", "commit": "0" * 40, "command": "python -m labkit.bench"}
    return KINDS[kind][0](settings={"model": "none", **settings}, samples=tuple(samples), **about)


def run_of(
    decode_seconds: float = 1.0,
    seconds: float = 1.0,
    prefill_seconds: float = 0.0,
    decoded_tokens: int = 100,
    decode_steps: int = 10,
    append_paths: dict[str, int] | None = None,
    new_tokens: tuple[int, ...] = (1,),
    gaps_us: Iterable[int] = (),
) -> Run:
    """A run of requests of whose waits nothing is known but the gaps between tokens."""
    itl = tuple(gap / 1e6 for gap in gaps_us)
    return Run(
        seconds,
        prefill_seconds,
        decode_seconds,
        decoded_tokens,
        decode_steps,
        append_paths or {},
        (1,) * len(new_tokens),
        new_tokens,
        LatencyMetrics((), (), (), itl, (), tokens=sum(new_tokens), span=seconds),
    )


def runs_record(
    runs: Iterable[tuple[str, Run]], limit_seconds: float = 0.5, kind: str = "ladder", **settings: object
) -> RunsRecord:
    """A record of runs, each with its rung."""
    samples = [RungRun(**vars(run), rung=rung, limit_seconds=limit_seconds) for rung, run in runs]
    return record_of(kind, samples, **settings)


def host_time_of(batch_size: int = 8, step: Iterable[float] = (1.0,)) -> HostTime:
    return HostTime(batch_size, 2, tuple(step), (0.1,), (0.1,))


def host_time_record(times: Iterable[tuple[str, HostTime]]) -> Record:
    """A record of host times, each with its rung."""
    return record_of("host_time", [RungHostTime(**vars(time), rung=rung) for rung, time in times])


def card_of(kernels: int | None = None, **counts: int) -> CostCard:
    """A card whose host counts are those given and else 0; with kernels, of a GPU, too."""
    host = HostCounts(**dict.fromkeys(HostCounts.__dataclass_fields__, 0) | counts)
    device = None if kernels is None else DeviceCounts(kernels, 2, 1064, 1, 1, 2, "counted on a GPU")
    return CostCard(1, {}, host, device)


def card_record(cards: Iterable[tuple[str, int, str, tuple[int, ...], CostCard]]) -> Record:
    """A record of cards: of each its rung, batch size, model, the lengths of its prompts, and itself."""
    return record_of(
        "cost_card",
        [RungCard(rung, B, CardKey(model, {}, 64, lengths), card) for rung, B, model, lengths, card in cards],
    )


def traced(rung: str, batch_size: int, step_us: float, busy_us: float, kernels: tuple = ()) -> TracedStep:
    return TracedStep(rung, batch_size, 100, step_us, busy_us, kernels)


# Kernels of a step whose layers are PyTorch's operators: how many, and their microseconds.
SEPARATE_KERNELS = {
    "nvjet_hsh_64x8_TNT": (36, 100.0),
    "void cublasLt::splitKreduce_kernel<32, 16>": (12, 24.0),
    "_paged_attn_append_kernel": (12, 60.0),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half>": (25, 50.0),
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>": (24, 40.0),
    "void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>": (12, 20.0),
    "void cutlass::Kernel2<cutlass_80_tensorop>": (1, 30.0),
    "void at::native::reduce_kernel<512, 1>": (1, 9.0),
}
