"""Records as files under data/results: found, read as the class of their kind, and compared by machine."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

from labkit.checks import shown
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.paths import RESULTS, ROOT, require_project
from labkit.results import (
    comparison,
    cost_cards,
    host_time,
    kernels,
    peers,
    profiles,
    ranks,
    runs,
    served,
)
from labkit.results.record import Host, Record
from labkit.results.typed import read_as, read_items

GPU_TESTS = RESULTS / "gpu_tests.json"
KINDS: dict[str, tuple[type[Record], Any]] = {  # the class of a record, and of its samples
    "profile": (profiles.ProfileRecord, profiles.ProfiledStep),
    "cost_card": (cost_cards.CostCardRecord, cost_cards.RungCard),
    "host_time": (host_time.HostTimeRecord, host_time.RungHostTime),
    "kv_append": (Record, kernels.AppendTime),
    "attention": (Record, kernels.AttentionTime),
    "decode_kernels": (profiles.DeviceTimeRecord, profiles.TracedStep),
    "comparison": (Record, comparison.ComparedWorkload),
    "scheduler": (runs.RunsRecord, runs.RungRun),
    "streaming": (runs.RunsRecord, runs.RungRun),
    "http": (served.HttpRecord, served.HttpRun),
    "ranks": (ranks.RanksRecord, ranks.RanksRun),
    "replicas": (served.ReplicasRecord, served.ReplicasRun),
    "fleet": (served.FleetRecord, served.FleetRun),
    "ladder": (runs.RunsRecord, runs.RungRun),
    "peers": (peers.PeersRecord, peers.PeerSample),
    "loads": (peers.LoadsRecord, peers.LoadRun),
    "sampling": (peers.SamplingRecord, peers.SamplingRun),
    "tiles": (Record, kernels.TunedTile),
    "drafts": (Record, comparison.DraftedTask),
    "drafts_dial": (Record, comparison.DialedRun),
    "faults": (Record, dict),  # of tests/soak; so are the next
    "flood": (Record, dict),
    "http_flood": (Record, dict),
}


def load(name: str) -> Any:
    """The record `name`.json of data/results, as the class of its kind, such as RunsRecord.

    Raises RecordError if there is no such record or if its file is damaged, and ProjectError for a package
    that was installed without its records.
    """
    if not isinstance(name, str) or not name or "\0" in name or Path(f"{name}.json").name != f"{name}.json":
        raise RecordError(f"{shown(name)} is no name of a record: it is that of a file, without .json")
    return load_file(RESULTS / f"{name}.json")


def load_file(path: Path) -> Record:
    """The record in a file, as the class of its kind. Raises RecordError if the file is damaged."""
    return record_of(read_record(path), f"record {path.stem}")


def load_all(kind: str) -> dict[str, Any]:
    """All records of a kind ("ladder") under data/results, by name, your own among them.

    Raises RecordError if there is no such kind or if a file is damaged, and ProjectError for a package that
    was installed without its records.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecordError(f"{shown(kind)} is no kind of record; there are {', '.join(sorted(KINDS))}")
    require_project()
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: load(path.stem) for path in paths if kind_of(path) == kind}


def record_of(raw: Any, name: str) -> Record:
    """The record of a JSON form. Raises RecordError, naming it by `name`, if that is not of its kind."""
    kind = read_as(dict, raw, name).get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecordError(f"{name} is of no known kind: {shown(kind)}")
    of_record, of_sample = KINDS[kind]
    samples = tuple(read_items((of_sample, ...), raw.get("samples"), f"{name}.samples"))
    if not samples:
        raise RecordError(f"{name} has no samples")
    return read_as(of_record, raw | {"samples": samples}, name)


def read_record(path: Path) -> Any:
    """What a file holds, unchecked. Raises RecordError naming the file if it cannot be read.

    ProjectError, if it would be the project's, which is not here.
    """
    if not isinstance(path, Path):
        raise RecordError(f"{shown(path)} is no path: hand over a pathlib.Path")
    if path.is_relative_to(ROOT):
        require_project()
    try:
        return read_json(path)
    except ValueError as error:
        raise RecordError(f"{error} (in {path.parent})") from error


def kind_of(path: Path) -> Any:
    """The kind of a record, by which it is found; None for other objects.

    It comes first, so that megabytes of other kinds need not be read; in another order it is read whole.
    """
    if path.is_file():  # otherwise reading it says what it is
        with path.open("rb") as file:
            first = re.match(rb'\s*{\s*"kind"\s*:\s*"(\w+)"', file.read(100))
        if first:
            return first[1].decode()
    return read_as(dict, read_record(path), f"record {path.stem}").get("kind")


@dataclass(frozen=True)
class GpuTests:
    """How many of the GPU tests passed, failed and were skipped, and the machine they ran on."""

    date: str
    commit: str
    passed: int
    failed: int
    skipped: int
    seconds: int
    num_gpus: int
    host: Host

    def to_dict(self) -> dict:
        """The JSON form; `load_gpu_tests` reads it."""
        return {"kind": "gpu_tests", **asdict(self), "host": self.host.to_dict()}


def load_gpu_tests(path: Path = GPU_TESTS) -> GpuTests:
    """The outcome in a file. Raises RecordError naming the file if it is missing or not such a record."""
    return read_as(GpuTests, read_record(path), path.name)


# --- what each machine's records say of the rungs: every record of a kind, yours among them ----------------

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
