"""What each machine's records say of the rungs: every record of a kind in data/results, yours among them."""

from collections.abc import Callable
from math import log

from labkit.results.files import load_all
from labkit.results.host_time import HostTimeRecord
from labkit.results.runs import RunsRecord

Lines = dict[str, dict[str, float]]  # for each record, by what it measured: a number per rung


def ladder_lines() -> Lines:
    """Decode tokens per second of the rungs, the median run, in every record of `ladder`.

    A record goes by its machine, its workload and its name; the newest is the last. Raises RecordError for a
    file that is no record.
    """

    def workload(record: RunsRecord) -> str:
        size = f"{record.num_requests} × {record.max_new_tokens}, B = {record.max_batch_size}"
        return f"{record.model}, {size}"

    return _lines("ladder", workload, lambda record: {rung: record.rate(rung) for rung in record.rates})


def host_time_lines(batch_size: int = 64) -> Lines:
    """Microseconds of host time per step of the rungs, the median, in every record of `host-time`.

    batch_size: of each record the size that is nearest to this one. A record goes by its machine, the size
    and its name; the newest is the last. Raises RecordError for a file that is no record.
    """

    def nearest(record: HostTimeRecord) -> int:
        sizes = {sample.batch_size for sample in record.samples}
        return min(sizes, key=lambda size: (abs(log(size / batch_size)), size))

    def values(record: HostTimeRecord) -> dict[str, float]:
        size = nearest(record)
        of_size = [sample for sample in record.samples if sample.batch_size == size]
        return {sample.rung: record.time(sample.rung, size).step_us for sample in of_size}

    return _lines("host_time", lambda record: f"B = {nearest(record)}", values)


def _lines(kind: str, what: Callable[..., str], values: Callable[..., dict[str, float]]) -> Lines:
    """A line per record of the kind, the oldest first; its rungs in the order of their numbers."""
    return {
        f"{record.host.machine}: {what(record)} ({name})": dict(sorted(values(record).items()))
        for name, record in sorted(load_all(kind).items(), key=lambda item: (item[1].date, item[0]))
    }
