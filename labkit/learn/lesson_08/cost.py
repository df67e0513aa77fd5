"""Lesson 08: what launches cost, and buckets that pad."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.learn.gates.gate import raised
from labkit.results import DeviceTimeRecord


def gain_by_context(
    record: DeviceTimeRecord,
    launch_us: float,
    bytes_a_token: int,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
) -> pd.DataFrame:
    """The most that a graph can gain as batches and texts grow, a column per batch size and a row per number
    of cached tokens of each request.

    Without a graph, host and GPU work at the same time, so a step takes as long as the slower of the two;
    with one, as long as the GPU.

    record: of `device-time`. launch_us: what the host takes to launch a step. The GPU's time is a line in the
    batch size through the two largest batches of rung 08; for longer texts than theirs, the time for the
    cache's bytes at the measured bandwidth is added.
    """
    busy = record.gpu_busy_us("08")
    (low, high), measured_at = sorted(busy)[-2:], record.samples[0].context_len
    a_request = (busy[high] - busy[low]) / (high - low)

    def gain(batch_size: int, context: int) -> str:
        more_bytes = batch_size * (context - measured_at) * bytes_a_token
        gpu_us = busy[low] + a_request * (batch_size - low) + 1e6 * more_bytes / record.bandwidth
        return f"×{max(launch_us, gpu_us) / gpu_us:.2f}"

    rows = {c: {f"B = {b}": gain(b, c) for b in batch_sizes} for c in contexts}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tokens in each cache")


# What a reader's buckets for 128 requests may cost: graphs, and % of rows.
MOST_GRAPHS, WORST_PADDING = 24, 45


def padding_table(policies: Mapping[str, Sequence[int]], max_batch_size: int) -> pd.DataFrame:
    """What choices of buckets, by name, each in rising order, cost: graphs to capture, and padding over all
    batch sizes."""
    rows = {}
    for name, buckets in policies.items():
        shares = {}
        for b in range(1, max_batch_size + 1):
            bucket = next(size for size in buckets if size >= b)
            shares[b] = 1 - b / bucket
        worst = max(shares, key=shares.get)
        rows[name] = {
            "sizes": len(buckets),
            "graphs": 2 * len(buckets),
            "padding, mean (%)": round(100 * float(np.mean(list(shares.values()))), 1),
            "padding, worst (%)": round(100 * shares[worst], 1),
            "worst at B": worst,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def spaced_sizes(max_batch_size: int, sizes_per_doubling: int) -> list[int]:
    """Buckets of which each is larger than the last by about the same factor, so many from a power of two to
    the next; rounded up, and `max_batch_size` itself."""
    num_steps = sizes_per_doubling * max_batch_size.bit_length()
    spaced = {math.ceil(2 ** (step / sizes_per_doubling)) for step in range(num_steps)}
    return sorted({*(size for size in spaced if size < max_batch_size), max_batch_size})


def padding_of(sizes_for: Callable[[int], Sequence[int]], max_batch_size: int = 128) -> str:
    """What a reader's choice of buckets costs, in a line, and whether that is little enough."""
    try:
        table = padding_table({"": sorted(sizes_for(max_batch_size))}, max_batch_size)
    except StopIteration:
        return f"graphs: not counted, because no size fits a batch of {max_batch_size}"
    except Exception as error:  # whatever the reader's code raises
        return f"graphs: not counted, because sizes_for {raised(error)}"
    (row,) = table.to_dict("records")
    is_small = row["graphs"] <= MOST_GRAPHS
    mean, worst = row["padding, mean (%)"], row["padding, worst (%)"]
    verdict = "right" if worst < WORST_PADDING else "too much padding"
    return (
        f"graphs: {verdict if is_small else 'too many'}. {row['graphs']} for up to {max_batch_size} "
        f"requests; padding: {mean} % of rows on average, {worst} % at worst"
    )
