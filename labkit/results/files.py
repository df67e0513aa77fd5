"""Records as files under data/results: found, checked, and read as the class of their kind."""

import re
from pathlib import Path
from typing import Any, TypeVar, overload

import pandas as pd

from labkit.checks import shown
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.paths import RESULTS, ROOT, require_project
from labkit.results.append_time import AppendTimeRecord
from labkit.results.attention_time import AttentionTimeRecord
from labkit.results.comparison import ComparisonRecord
from labkit.results.cost_cards import CostCardRecord
from labkit.results.device_time import DeviceTimeRecord
from labkit.results.faults import FaultsRecord
from labkit.results.flood import FloodRecord
from labkit.results.fuzz import FuzzRecord
from labkit.results.host_time import HostTimeRecord
from labkit.results.loads import LoadsRecord
from labkit.results.peers import PeersRecord
from labkit.results.profiles import ProfileRecord
from labkit.results.record import RECORD, Record
from labkit.results.runs import RunsRecord
from labkit.results.sampling import SamplingRecord
from labkit.results.shape import POSITIVE, OrNull, check_shape
from labkit.results.tiles import TilesRecord

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
    "ladder": RunsRecord,
    "peers": PeersRecord,
    "loads": LoadsRecord,
    "sampling": SamplingRecord,
    "faults": FaultsRecord,
    "flood": FloodRecord,
    "fuzz": FuzzRecord,
    "tiles": TilesRecord,
}


R = TypeVar("R", bound=Record)


@overload
def load(name: str) -> Record: ...


@overload
def load(name: str, record_class: type[R]) -> R: ...


def load(name: str, record_class: type[Record] = Record) -> Record:
    """The record `name`.json of data/results, as the class of its kind.

    record_class: the class that it must have, such as RunsRecord, for code that needs its methods. Raises
    RecordError if there is no such record, if it is not what a record is, or if it is of another class, and
    ProjectError for a package that was installed without its records.
    """
    if not isinstance(name, str) or not name or "\0" in name or Path(f"{name}.json").name != f"{name}.json":
        raise RecordError(f"{shown(name)} is no name of a record: it is that of a file, without .json")
    if not isinstance(record_class, type) or not issubclass(record_class, Record):
        raise RecordError(f"{shown(record_class)} is no class of records, such as RunsRecord")
    record = load_file(RESULTS / f"{name}.json")
    if not isinstance(record, record_class):
        raise RecordError(f"record {name} is of kind {record.kind}, not a {record_class.__name__}")
    return record


def load_file(path: Path) -> Record:
    """The record in a file, as the class of its kind. Raises RecordError if it is not what a record is."""
    raw = read_record(path)
    check_record(path.stem, raw)
    return KINDS[raw["kind"]].from_dict(raw)


def load_all(kind: str) -> dict[str, Record]:
    """All records of a kind ("ladder") under data/results, by name, your own among them.

    Raises RecordError if there is no such kind, or if a file cannot be read or is not what a record is, and
    ProjectError for a package that was installed without its records.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecordError(f"{shown(kind)} is no kind of record; there are {', '.join(sorted(KINDS))}")
    require_project()
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: load(path.stem) for path in paths if kind_of(path) == kind}


def table(kind: str) -> pd.DataFrame:
    """The samples of all records of a kind: a row per sample, with the record's device, commit and model."""
    return pd.DataFrame(
        [
            {
                "record": name,
                "device": record.host.machine,
                "date": record.date,
                "commit": record.commit[:8],
                "model": record.model,
                "bandwidth": record.bandwidth,
                "read_bandwidth": record.read_bandwidth,
                **sample,
            }
            for name, record in load_all(kind).items()
            for sample in record.to_dict()["samples"]
        ]
    )


def check_record(name: str, raw: Any) -> None:
    """Raises RecordError saying what a record lacks, or which part of it is not what readers expect."""
    name = f"record {name}"
    check_shape(name, raw, RECORD)
    check_shape(name, raw.get("read_bandwidth"), OrNull(POSITIVE), "read_bandwidth")  # not in older ones
    if raw["kind"] not in KINDS:
        raise RecordError(f"{name} is of no known kind: {shown(raw['kind'])}")
    if not raw["samples"]:
        raise RecordError(f"{name} has no samples")
    kind = KINDS[raw["kind"]]
    check_shape(name, raw["settings"], kind.SETTINGS, "settings")
    for i, sample in enumerate(raw["samples"]):
        check_shape(name, sample, kind.SAMPLE.SHAPE, f"sample {i}")


def read_record(path: Path) -> Any:
    """What the file holds, unchecked. Raises RecordError naming the file if it cannot be read, or if `path`
    is none.

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
    """The kind of a record, by which it is found. It comes first, so that megabytes of other kinds need not
    be read; a record that was put in another order is read whole."""
    if path.is_file():  # else reading it says what it is
        with path.open("rb") as file:
            first = re.match(rb'\s*{\s*"kind"\s*:\s*"(\w+)"', file.read(100))
        if first:
            return first[1].decode()
    record = read_record(path)
    check_shape(f"record {path.stem}", record, {})
    return record.get("kind")
