"""Lesson 18: which models gain on paper, from bytes and the price of a sum, and what was measured."""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from labkit.bench.gains import SUMS_PER_LAYER, Gain, all_gains, gains_table
from labkit.bench.limit import decode_limit, on_paper
from labkit.results import load, load_all

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
    known = [gain for gain in gains if gain.sum_us is not None]
    table = gains_table(known).drop(columns=["tokens/s, one", "tokens/s, cut"])
    paper = [gain_on_paper(g.name, g.gpus, g.sum_us, g.requests, g.read_bandwidth) for g in known]
    table["GPUs"] = [gain.kind for gain in known]
    table.insert(2, "a sum (µs)", table.pop("a sum (µs)"))
    table.insert(3, "× on paper", [f"{times:.2f}" for times in paper])
    return table.rename(columns={"×": "× measured"})
