"""Where it pays to cut a model among GPUs: recorded runs beside the bytes that each GPU has to read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from labkit.bench.limit import on_paper, workload_limit
from labkit.model import Network
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.results.comparison import Comparison
from labkit.results.ranks import CUT_NCCL, ONE, RanksRecord

SUMS_PER_LAYER = 2


@dataclass(frozen=True)
class Gain:
    """A model on one GPU and cut among several, by whichever way to sum was faster, with so many requests.

    name: the model's, without saying that its weights are random. kind: how many GPUs, and which: "2 × H100".
    rates: tokens per second on one GPU and on several. bandwidths: bytes per second that each GPU read of
    weights, keys and values, on one and on several; sum_us: microseconds of one sum over GPUs, in a profiled
    step. Both are None for a model without a published size. by_nccl: the comparison with NCCL's sums.
    read_bandwidth: bytes per second of the GPU, reading alone.
    """

    name: str
    kind: str
    requests: int
    gpus: int
    rates: tuple[float, float]
    comparison: Comparison
    by_nccl: Comparison
    bandwidths: tuple[float, float] | None
    sum_us: float | None
    read_bandwidth: float | None


def gain_of(record: RanksRecord, requests: int, network: Network | None) -> Gain:
    """network: the model on paper; None for one without a published size."""
    side, bandwidths, sum_us = record.best_side(requests), None, None
    rates = record.rate(ONE, requests), record.rate(side, requests)
    if network is not None:
        prompts, new = [record.prompt_tokens] * requests, [record.max_new_tokens] * requests
        limit = workload_limit(network, prompts, new, requests, bandwidth=1.0)
        bytes_of_token = limit.num_bytes / limit.num_tokens
        bandwidths = rates[0] * bytes_of_token, rates[1] * bytes_of_token / record.ranks
        sum_us = record.sums_us(side, requests) / (SUMS_PER_LAYER * network.config.num_layers) or None
    return Gain(
        name=record.model.removeprefix("random:"),
        kind=f"{record.ranks} × {record.host.device.removeprefix('NVIDIA ').split()[0]}",
        requests=requests,
        gpus=record.ranks,
        rates=rates,
        comparison=record.comparison(side, requests),
        by_nccl=record.comparison(CUT_NCCL, requests),
        bandwidths=bandwidths,
        sum_us=sum_us,
        read_bandwidth=record.read_bandwidth,
    )


def all_gains(records: Iterable[RanksRecord]) -> list[Gain]:
    """What records say, by model, number of GPUs and of requests; the largest model comes first."""
    made = []
    for record in records:
        name = record.model.removeprefix("random:")
        network = on_paper(name) if name in RANDOM_CONFIGS else None
        size = 0 if network is None else network.config.num_matrix_weights
        for requests in record.distinct("requests"):
            made.append((-size, name, record.ranks, requests, gain_of(record, requests, network)))
    return [gain for *_, gain in sorted(made, key=lambda each: each[:4])]


def gains_table(gains: Iterable[Gain]) -> pd.DataFrame:
    """A row per model, number of GPUs and of requests."""
    rows = []
    for gain in gains:
        one, cut = gain.rates
        read = gain.bandwidths and " → ".join(f"{each / 1e9:,.0f}" for each in gain.bandwidths)
        rows.append(
            {
                "model": gain.name,
                "GPUs": f"{gain.gpus}",
                "requests": f"{gain.requests}",
                "tokens/s, one": f"{one:,.0f}",
                "tokens/s, cut": f"{cut:,.0f}",
                "×": f"{gain.comparison.speedup:.2f} {gain.comparison.interval}",
                "verdict": gain.comparison.verdict,
                "× by NCCL": f"{gain.by_nccl.speedup:.2f}",
                "GB/s of each GPU": read or "–",
                "a sum (µs)": "–" if gain.sum_us is None else f"{gain.sum_us:.1f}",
            }
        )
    return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def by_model(gains: Sequence[Gain]) -> dict[str, dict[str, dict[int, Comparison]]]:
    """The comparisons, by model, GPUs and number of requests."""
    found: dict[str, dict[str, dict[int, Comparison]]] = {}
    for gain in gains:
        found.setdefault(gain.name, {}).setdefault(gain.kind, {})[gain.requests] = gain.comparison
    return found
