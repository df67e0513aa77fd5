"""Records as files under data/results: found, and read as the class of their kind."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.checks import shown
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.paths import RESULTS, ROOT, require_project
from labkit.results.comparison import ComparisonRecord
from labkit.results.cost_cards import CostCardRecord
from labkit.results.drafts import DialRecord, DraftsRecord
from labkit.results.fleet import FleetRecord
from labkit.results.host_time import HostTimeRecord
from labkit.results.http import HttpRecord, ReplicasRecord
from labkit.results.kernel_times import AppendTimeRecord, AttentionTimeRecord, TilesRecord
from labkit.results.loads import LoadsRecord
from labkit.results.peers import PeersRecord
from labkit.results.profiles import DeviceTimeRecord, ProfileRecord
from labkit.results.ranks import RanksRecord
from labkit.results.record import Host, Record
from labkit.results.runs import RunsRecord
from labkit.results.sampling import SamplingRecord
from labkit.results.typed import Count, read_as

GPU_TESTS = RESULTS / "gpu_tests.json"
KINDS: dict[str, type[Record]] = {
    "profile": ProfileRecord,
    "cost_card": CostCardRecord,
    "host_time": HostTimeRecord,
    "kv_append": AppendTimeRecord,
    "attention": AttentionTimeRecord,
    "decode_kernels": DeviceTimeRecord,
    "comparison": ComparisonRecord,
    "scheduler": RunsRecord,
    "streaming": RunsRecord,
    "http": HttpRecord,
    "ranks": RanksRecord,
    "replicas": ReplicasRecord,
    "fleet": FleetRecord,
    "ladder": RunsRecord,
    "peers": PeersRecord,
    "loads": LoadsRecord,
    "sampling": SamplingRecord,
    "tiles": TilesRecord,
    "drafts": DraftsRecord,
    "drafts_dial": DialRecord,
    "faults": Record,  # of tests/soak; so are the next
    "flood": Record,
    "http_flood": Record,
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
    kind = read_as(dict[str, Any], raw, name).get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecordError(f"{name} is of no known kind: {shown(kind)}")
    return KINDS[kind].from_dict(raw, name)


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
    return read_as(dict[str, Any], read_record(path), f"record {path.stem}").get("kind")


@dataclass(frozen=True)
class GpuTests:
    """How many of the GPU tests passed, failed and were skipped, and the machine they ran on."""

    date: str
    commit: str
    passed: Count
    failed: Count
    skipped: Count
    seconds: Count
    num_gpus: Count
    host: Host

    def to_dict(self) -> dict:
        """The JSON form; `load_gpu_tests` reads it."""
        return {"kind": "gpu_tests", **asdict(self), "host": self.host.to_dict()}


def load_gpu_tests(path: Path = GPU_TESTS) -> GpuTests:
    """The outcome in a file. Raises RecordError naming the file if it is missing or not such a record."""
    return read_as(GpuTests, read_record(path), path.name)
