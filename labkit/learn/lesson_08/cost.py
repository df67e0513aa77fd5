"""Lesson 08: what graphs save, from recorded runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from labkit.results import DeviceTimeRecord, RunsRecord, StepProfile
from labkit.results.profiles import is_inside


def forward_us(profile: StepProfile) -> tuple[float, float, int]:
    """The model's forward in a profiled step: microseconds on the host, microseconds of its kernels, and how
    many kernels."""
    (forward,) = [span for span in profile.ranges if span.name == "labkit.model.forward"]
    inside = [k for k in profile.kernels if is_inside(k, forward)]
    return forward.duration, sum(kernel.duration for kernel in inside), len(inside)


def share_replaced(ratio: float) -> float:
    """The share of the whole that was removed, if a gain of `ratio` comes only from something that takes no
    time any more."""
    return 1 - 1 / ratio


class LaunchBound(NamedTuple):
    """A model of a decode step: the microseconds that the host takes to launch it, and that the GPU takes to
    run it."""

    launch_us: float
    gpu_us: float

    @property
    def eager_us(self) -> float:
        """The step's microseconds without a graph: host and GPU work at the same time, so the slower of the
        two."""
        return max(self.launch_us, self.gpu_us)

    @property
    def gain(self) -> float:
        """The most times faster that a graph can make the step."""
        return self.eager_us / self.gpu_us


def launch_model(records: Mapping[int, RunsRecord], kernels: Mapping[int, int]) -> pd.DataFrame:
    """Kernels times the host's microseconds per kernel beside the measured steps of rung 07, a column per
    batch size.

    records: of `ladder`, by batch size; kernels: of a step. The microseconds per kernel are those of the
    smallest batch, and are held against the others.
    """
    smallest = min(records)
    launch_us = records[smallest].step_us("07") / kernels[smallest]
    rows = {}
    for batch_size, record in sorted(records.items()):
        eager = record.step_us("07")
        of_launches = launch_us * kernels[batch_size]
        rows[f"B = {batch_size}"] = {
            "kernels": kernels[batch_size],
            "kernels x us per kernel": round(of_launches),
            "rung 07, measured (us)": round(eager),
            "of it launches, by the model": f"{of_launches / eager:.0%}",
        }
    return pd.DataFrame(rows)


def gain_by_context(
    record: DeviceTimeRecord,
    launch_us: float,
    bytes_a_token: int,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
) -> pd.DataFrame:
    """The most that a graph can gain as batches and texts grow, a column per batch size and a row per number
    of cached tokens of each request.

    record: of `device-time`. The GPU's time is a line in the batch size through the two largest batches of
    rung 08; for longer texts than theirs, the time for the cache's bytes at the measured bandwidth is added.
    """
    busy = record.gpu_busy_us("08")
    (low, high), measured_at = sorted(busy)[-2:], record.samples[0].context_len
    a_request = (busy[high] - busy[low]) / (high - low)

    def gain(batch_size: int, context: int) -> str:
        more_bytes = batch_size * (context - measured_at) * bytes_a_token
        gpu_us = busy[low] + a_request * (batch_size - low) + 1e6 * more_bytes / record.bandwidth
        return f"×{LaunchBound(launch_us, gpu_us).gain:.2f}"

    rows = {c: {f"B = {b}": gain(b, c) for b in batch_sizes} for c in contexts}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tokens in each cache")
