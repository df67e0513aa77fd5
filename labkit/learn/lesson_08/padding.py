"""Lesson 08: choices of buckets, and the rows of a step that are padding."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.learn.gates.gate import raised

MOST_GRAPHS, WORST_PADDING = (
    24,
    45,
)  # what a reader's buckets for 128 requests may cost: graphs, and % of rows


def bucket_of(batch_size: int, buckets: Sequence[int]) -> int:
    """The smallest of the buckets that the batch fits. buckets: in rising order."""
    return next(size for size in buckets if size >= batch_size)


def padded_share(batch_size: int, buckets: Sequence[int]) -> float:
    """The share of a step's rows that are padding, 0 to 1, for a batch in its bucket."""
    return 1 - batch_size / bucket_of(batch_size, buckets)


def padding_table(policies: Mapping[str, Sequence[int]], max_batch_size: int) -> pd.DataFrame:
    """What choices of buckets cost, a row per policy, by name: graphs to capture, and padding over all batch
    sizes."""
    rows = {}
    for name, buckets in policies.items():
        shares = {b: padded_share(b, buckets) for b in range(1, max_batch_size + 1)}
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
    """What a reader's choice of buckets costs, in a line: graphs, padding over all batch sizes,
    and whether that is little enough."""
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
