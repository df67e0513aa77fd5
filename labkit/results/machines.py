"""What each machine's records say of the rungs: every record of a kind in data/results, yours among them."""

from collections.abc import Callable
from math import log
from typing import Any

from labkit.results.files import load_all

Lines = dict[str, dict[str, float]]  # for each record, by what it measured: a number per rung


def ladder_lines() -> Lines:
    """Decode tokens per second of the rungs, the median run, in every record of `ladder`.

    A record goes by its machine, its workload and its name; the newest is the last. Raises RecordError for a
    file that is no record.
    """
    return _lines(
        "ladder",
        lambda r: f"{r.model}, {r.num_requests} × {r.max_new_tokens}, B = {r.max_batch_size}",
        lambda r: {rung: r.rate(rung) for rung in r.rates},
    )


def host_time_lines(batch_size: int = 64) -> Lines:
    """Microseconds of host time per step of the rungs, the median, in every record of `host-time`.

    batch_size: of each record the size that is nearest to this one. A record goes by its machine, the size
    and its name; the newest is the last. Raises RecordError for a file that is no record.
    """

    def nearest(record: Any) -> int:
        return min(record.distinct("batch_size"), key=lambda size: (abs(log(size / batch_size)), size))

    def values(record: Any) -> dict[str, float]:
        size = nearest(record)
        return {each.rung: record.time(each.rung, size).step_us for each in record.only(batch_size=size)}

    return _lines("host_time", lambda record: f"B = {nearest(record)}", values)


def _lines(kind: str, what: Callable[[Any], str], values: Callable[[Any], dict[str, float]]) -> Lines:
    """A line per record of the kind, the oldest first; its rungs in the order of their numbers."""
    return {
        f"{record.host.machine}: {what(record)} ({name})": dict(sorted(values(record).items()))
        for name, record in sorted(load_all(kind).items(), key=lambda item: (item[1].date, item[0]))
    }
