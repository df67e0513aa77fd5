"""kv-append: times one layer's K/V write alone, in each of its forms, for 1 to 2048 requests.

Index tensors exist already, so this is the kernel and its launch alone. GB/s count new keys and values read
once and written once.
"""

from dataclasses import dataclass

import pandas as pd
from tqdm import tqdm

from labkit.bench.append_time import BATCH_SIZES, time_appends
from labkit.bench.commands.arguments import COUNT, DeviceFlags, batch_sizes_flag
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import measure_bandwidth
from labkit.engine.device import pick_device
from labkit.results import AppendTime

SMALL_SIZES = (1, 8, 64)  # on a CPU


@dataclass
class Settings(DeviceFlags):
    """The command's flags."""

    batch_sizes: tuple[int, ...] = batch_sizes_flag(
        ByDevice(BATCH_SIZES, SMALL_SIZES), "are written together"
    )
    repeats: int = flag(15, "each form and size is measured this many times", COUNT)


def run(args: Settings) -> None:
    """Time each form of the K/V write at each batch size, print a table, and write a record if asked for."""
    device = pick_device(args.device)
    bandwidth = measure_bandwidth(device)
    times: list[AppendTime] = []
    with args.until_interrupted(times):
        for batch_size in tqdm(args.batch_sizes, desc="B"):
            times += time_appends(batch_size, device, args.repeats)
    print(append_table(times, bandwidth.copy).to_string())
    print(f"Memory: {bandwidth}")
    record_if_asked(args, "kv_append", device, times, bandwidth, model="none, a layer of GPT-2's")


def append_table(times: list[AppendTime], bandwidth: float) -> pd.DataFrame:
    """A row per batch size: microseconds of each path, and the rate of the fastest."""
    rows: dict[int, dict[str, float]] = {}
    for time in times:
        row = rows.setdefault(time.batch_size, {})
        row[f"{time.path} (µs)"] = round(time.device_us, 2)
    for batch_size, row in rows.items():
        best = max(time.rate for time in times if time.batch_size == batch_size)
        row["best, GB/s"] = round(best / 1e9, 1)
        row["best, % of copy"] = round(100 * best / bandwidth, 1)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("B")
