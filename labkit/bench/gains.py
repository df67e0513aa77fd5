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


def network_of(name: str) -> Network | None:
    """A model of a published size on paper; None for another one."""
    return on_paper(name) if name in RANDOM_CONFIGS else None


def gains_of(record: RanksRecord) -> list[Gain]:
    network, made = network_of(record.model.removeprefix("random:")), []
    for requests in dict.fromkeys(run.requests for run in record.samples):
        side = record.best_side(requests)
        rates = record.rate(ONE, requests), record.rate(side, requests)
        bandwidths, sum_us = None, None
        if network is not None:
            prompts, new = [record.prompt_tokens] * requests, [record.max_new_tokens] * requests
            limit = workload_limit(network, prompts, new, requests, bandwidth=1.0)
            bytes_of_token = limit.num_bytes / limit.num_tokens
            bandwidths = rates[0] * bytes_of_token, rates[1] * bytes_of_token / record.ranks
            num_sums = SUMS_PER_LAYER * network.config.num_layers
            sum_us = record.sums_us(side, requests) / num_sums or None
        made.append(
            Gain(
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
        )
    return made


def all_gains(records: Iterable[RanksRecord]) -> list[Gain]:
    """What records say, by model, number of GPUs and of requests; the largest model comes first."""

    def order(gain: Gain) -> tuple[float, str, int, int]:
        network = network_of(gain.name)
        size = 0 if network is None else network.config.num_matrix_weights
        return -size, gain.name, gain.gpus, gain.requests

    return sorted((gain for record in records for gain in gains_of(record)), key=order)


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
