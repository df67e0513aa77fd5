"""Lesson 18: which models gain on paper, from bytes and the price of a sum, and what was measured."""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from labkit.bench.limit import decode_limit, on_paper
from labkit.bench.ranks import SUMS_PER_LAYER, Gain, all_gains, by_model
from labkit.results import load, load_all
from labkit.show import draw_gains

MODELS = ("gpt2", "gpt2-medium", "gpt2-xl", "llama-3.2-1b", "llama-3.1-8b")
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
    """Microseconds of a decode step on paper: to read its bytes on so many GPUs, and to make its sums.

    read: bytes per second of a GPU; None: of an H100.
    """
    network = on_paper(model)
    reading = 1e6 * decode_limit(network, [CONTEXT] * requests, read or bandwidth()).seconds / gpus
    return reading, SUMS_PER_LAYER * network.config.num_layers * sum_us * (gpus > 1)


def gain_on_paper(
    model: str, gpus: int, sum_us: float, requests: int = 1, read: float | None = None
) -> float:
    """How many times faster a step is on so many GPUs, on paper."""
    one, several = (sum(step_us(model, n, sum_us, requests, read)) for n in (1, gpus))
    return one / several


def paper_table(sum_us: float) -> pd.DataFrame:
    """A row per model, for one request: bytes of a layer, and the step on one GPU and on two."""
    rows = {}
    for model in MODELS:
        config = on_paper(model).config
        layer_bytes = 2 * config.num_matrix_weights / config.num_layers  # in 16 bits
        read, sums = step_us(model, 2, sum_us)
        rows[model] = {
            "MB a layer": f"{layer_bytes / 1e6:,.0f}",
            "µs to read, one GPU": f"{step_us(model, 1, sum_us)[0]:,.0f}",
            "µs to read, 2": f"{read:,.0f}",
            "µs of sums": f"{sums:,.0f}",
            "×": f"{gain_on_paper(model, 2, sum_us):.2f}",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("one request")


# --- what was measured --------------------------------------------------------------------------------------


def measured() -> list[Gain]:
    """What the records say that are there, each GPU's own."""
    return all_gains(load_all("ranks").values())


def measured_table(gains: Sequence[Gain]) -> pd.DataFrame:
    """A row per gain: measured, and on paper with the price that a sum had there."""
    rows = []
    for gain in gains:
        if gain.bandwidths is None or gain.sum_us is None:
            continue
        paper = gain_on_paper(gain.name, gain.gpus, gain.sum_us, gain.requests, gain.read_bandwidth)
        one, cut = (f"{each / 1e9:,.0f}" for each in gain.bandwidths)
        rows.append(
            {
                "model": gain.name,
                "GPUs": gain.kind,
                "requests": f"{gain.requests}",
                "a sum (µs)": f"{gain.sum_us:.1f}",
                "× on paper": f"{paper:.2f}",
                "× measured": f"{gain.comparison.speedup:.2f} {gain.comparison.interval}",
                "verdict": gain.comparison.verdict,
                "× by NCCL": f"{gain.by_nccl.speedup:.2f}",
                "GB/s of each GPU": f"{one} → {cut}",
            }
        )
    return pd.DataFrame(rows).set_index("model")


def draw_measured(gains: Sequence[Gain]) -> None:
    """Draw all gains."""
    draw_gains(by_model(gains))
