"""Lesson 18: which models gain on paper, from bytes and the price of a sum."""

from functools import cache

from labkit.bench.limit import decode_limit, on_paper
from labkit.bench.ranks import SUMS_PER_LAYER
from labkit.results import load

RECORD = "ranks_8b_2_h100"  # of an H100: what it reads per second is taken from this
CONTEXT = 160  # tokens that each request has in the cache


@cache
def bandwidth() -> float:
    """Bytes per second of an H100, reading alone."""
    return load(RECORD).read_bandwidth


def break_even_megabytes(sum_us: float) -> float:
    """How large a layer must be for cutting it in two to save as much time as its sums take."""
    return SUMS_PER_LAYER * sum_us * 1e-6 * bandwidth() / 0.5 / 1e6


def step_us(
    model: str, gpus: int, sum_us: float, requests: int = 1, read: float | None = None
) -> tuple[float, float]:
    """Microseconds of a decode step on paper: to read its bytes on so many GPUs, and to make its sums. read:
    bytes per second of a GPU; None: of an H100."""
    network = on_paper(model)
    reading = 1e6 * decode_limit(network, [CONTEXT] * requests, read or bandwidth()).seconds / gpus
    return reading, SUMS_PER_LAYER * network.config.num_layers * sum_us * (gpus > 1)


def gain_on_paper(
    model: str, gpus: int, sum_us: float, requests: int = 1, read: float | None = None
) -> float:
    """How many times faster a step is on so many GPUs, on paper."""
    one, several = (sum(step_us(model, n, sum_us, requests, read)) for n in (1, gpus))
    return one / several
