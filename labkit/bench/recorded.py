"""Records in the shape that figures take. What one cannot give, for it has no such runs, is a RecordError."""

from collections import Counter
from statistics import median

from labkit.bench.comparison import Comparison
from labkit.bench.host_time import HostTime
from labkit.errors import RecordError


def ladder_rates(record: dict) -> dict[str, list[float]]:
    """Decode tokens a second of each run, by rung, from a record of `ladder`, `scheduler` or `streaming`."""
    rates: dict[str, list[float]] = {}
    for sample in record["samples"]:
        rates.setdefault(sample["rung"], []).append(decode_rate(sample, "decode_seconds"))
    return rates


def decode_rate(sample: dict, seconds: str) -> float:
    if not sample[seconds]:
        raise RecordError("a run of the record decoded nothing, so it has no rate")
    return sample["decoded_tokens"] / sample[seconds]


def ladder_limit(record: dict) -> float:
    """The most decode tokens a second that the device allows for the record's workload."""
    return median(decode_rate(sample, "limit_seconds") for sample in record["samples"])


def ladder_comparison(record: dict, before: str, after: str, path: str | None = None) -> Comparison:
    """Two rungs' decode times from a record of `ladder`, whose runs were made in turn."""

    def side(rung: str) -> tuple[tuple[float, ...], dict[str, int]]:
        samples = samples_of(record, rung)
        paths = sum((Counter(sample["append_paths"]) for sample in samples), Counter())
        return tuple(sample["decode_seconds"] for sample in samples), dict(paths)

    (before_seconds, before_paths), (after_seconds, after_paths) = side(before), side(after)
    return Comparison(before, after, before_seconds, after_seconds, before_paths, after_paths, path)


def samples_of(record: dict, rung: str) -> list[dict]:
    if samples := [sample for sample in record["samples"] if sample["rung"] == rung]:
        return samples
    known = ", ".join(dict.fromkeys(sample["rung"] for sample in record["samples"]))
    raise RecordError(f"the record has no runs of rung {rung!r}; it has {known}")


def host_comparison(record: dict, before: str, after: str, batch_size: int) -> Comparison:
    """Two rungs' host times of a step from a record of `host-time`: of each run, the median step."""

    def side(rung: str) -> tuple[float, ...]:
        runs = [s for s in samples_of(record, rung) if s["batch_size"] == batch_size]
        if not runs:
            raise RecordError(f"the record has no runs of rung {rung} with batch size {batch_size}")
        return tuple(median(run["step_seconds"]) for run in runs)

    return Comparison(before, after, side(before), side(after), {}, {})


def host_times(record: dict) -> dict[str, list[HostTime]]:
    """Host times by rung from a record of `host-time`, one a batch size, the runs' steps together."""
    pooled: dict[str, dict[int, HostTime]] = {}
    for sample in record["samples"]:
        by_size = pooled.setdefault(sample["rung"], {})
        time = HostTime.from_dict(sample)
        earlier = by_size.get(time.batch_size)
        by_size[time.batch_size] = time if earlier is None else earlier.with_steps_of(time)
    return {rung: list(by_size.values()) for rung, by_size in pooled.items()}
