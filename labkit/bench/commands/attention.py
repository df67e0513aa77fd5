"""attention: times one layer's attention and write alone, with one program per request and head or several.

GB/s count the keys and values in the cache, read once.
"""

from dataclasses import dataclass

import pandas as pd
from tqdm import tqdm

from labkit.bench.attention_time import MAX_TOKENS, time_attention
from labkit.bench.commands.arguments import (
    COUNT,
    DeviceFlags,
    batch_sizes_flag,
    list_of,
    whole_number,
)
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import measure_bandwidth
from labkit.engine.device import pick_device
from labkit.results import AttentionTime


@dataclass
class Settings(DeviceFlags):
    """The command's flags."""

    batch_sizes: tuple[int, ...] = batch_sizes_flag(
        ByDevice((1, 8, 64, 128), (1, 8)), "are attended to together"
    )
    contexts: tuple[int, ...] = flag(
        (64, 256, 900),
        "each request has this many tokens in the cache",
        Kind(list_of(whole_number(1, MAX_TOKENS - 1)), "N,N,..."),
    )
    repeats: int = flag(15, "each size and kernel is measured this many times", COUNT)


def run(args: Settings) -> None:
    """Time one layer's attention at each batch size and length; print a table, and write a record."""
    device = pick_device(args.device)
    bandwidth = measure_bandwidth(device)
    sizes = [(b, t) for b in args.batch_sizes for t in args.contexts]
    times: list[AttentionTime] = []
    with args.until_interrupted(times):
        for b, t in tqdm(sizes, desc="sizes"):
            times += time_attention(b, t, device, args.repeats)
    print(attention_table(times, bandwidth.copy).to_string())
    print(f"Memory: {bandwidth}")
    record_if_asked(args, "attention", device, times, bandwidth, model="none, a layer of GPT-2's")


def attention_table(times: list[AttentionTime], bandwidth: float) -> pd.DataFrame:
    """A row per size and kernel: microseconds, and what part of copy bandwidth is reached."""
    rows = [
        (t.batch_size, t.context_len, t.kernel, t.splits, round(t.us, 2), round(100 * t.rate / bandwidth, 1))
        for t in times
    ]
    columns = ["B", "tokens", "kernel", "splits", "µs", "% of copy"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:3])
