"""Records in the shape that figures take."""

from statistics import median

from labkit.bench.host_time import HostTime


def ladder_rates(record: dict) -> dict[str, list[float]]:
    """Decode tokens a second of each run, by rung, from a record of `ladder`, `scheduler` or `streaming`."""
    rates: dict[str, list[float]] = {}
    for sample in record["samples"]:
        rates.setdefault(sample["rung"], []).append(sample["decoded_tokens"] / sample["decode_seconds"])
    return rates


def ladder_limit(record: dict) -> float:
    """The most decode tokens a second that the device allows for the record's workload."""
    return median(sample["decoded_tokens"] / sample["limit_seconds"] for sample in record["samples"])


def host_times(record: dict) -> dict[str, list[HostTime]]:
    """Host times by rung from a record of `host-time`, one a batch size, the runs' steps together."""
    pooled: dict[str, dict[int, HostTime]] = {}
    for sample in record["samples"]:
        by_size = pooled.setdefault(sample["rung"], {})
        time = HostTime.from_dict(sample)
        earlier = by_size.get(time.batch_size)
        by_size[time.batch_size] = time if earlier is None else earlier.with_steps_of(time)
    return {rung: list(by_size.values()) for rung, by_size in pooled.items()}
