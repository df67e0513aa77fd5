"""What every record has: where it comes from, the settings of the command that made it, and its samples."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import pandas as pd

from labkit.errors import RecordError
from labkit.results.comparison import Comparison

KINDS_OF_CPU = ("x86_64", "AMD64", "aarch64", "arm64")


@dataclass(frozen=True)
class Host:
    """The machine and the versions that a figure was measured with; None for what a machine does not have.

    device: the model of the GPU, or of the CPU if that was measured.
    """

    device: str
    driver: str | None
    cpu: str
    cpu_cores: int | None
    python: str
    torch: str
    triton: str | None
    threads: int | None = None  # of PyTorch's on the CPU; older records do not say
    transformers: str | None = None  # said where the tests are recorded

    @property
    def machine(self) -> str:
        """The model of the GPU or CPU that was measured: older records name a CPU by its kind alone."""
        return self.cpu if self.device in KINDS_OF_CPU else self.device

    def to_dict(self) -> dict[str, str | int | None]:
        """The JSON form: without threads and transformers where they are None."""
        later = ("threads", "transformers")
        return {name: value for name, value in asdict(self).items() if value is not None or name not in later}


@dataclass(frozen=True)
class Record:
    """What a command measured, with all that is needed to judge it. Settings are attributes, too.

    bandwidth: bytes per second of a copy on the device. settings: the command's flags, and what else it was
    told. read_bandwidth: bytes per second of reading alone; None in older records.
    """

    kind: str
    date: str
    commit: str
    command: str
    host: Host
    bandwidth: float
    settings: dict[str, Any]
    samples: tuple[Any, ...]
    read_bandwidth: float | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and Jupyter ask for such names, and expect this error
            raise AttributeError(name)
        if name not in self.settings:
            raise RecordError(f"a {type(self).__name__} has no {name}, nor has its command such a setting")
        return self.settings[name]

    def only(self, **wanted: object) -> list[Any]:
        """The samples with these values, in order. Raises RecordError if there are none, naming those of the
        first that there are."""
        if found := [s for s in self.samples if all(getattr(s, key) == its for key, its in wanted.items())]:
            return found
        first = next(iter(wanted))
        known = ", ".join(dict.fromkeys(str(getattr(sample, first)) for sample in self.samples))
        asked = " and ".join(f"{key} {value!r}" for key, value in wanted.items())
        raise RecordError(f"the record has no runs of {asked}; it has {known}")

    def distinct(self, field: str) -> list[Any]:
        """The values of a field of the samples, each once, in order."""
        return list(dict.fromkeys(getattr(sample, field) for sample in self.samples))

    def median(self, field: str, **wanted: object) -> float:
        """The median of a field of the samples with these values."""
        return median(getattr(sample, field) for sample in self.only(**wanted))

    def compared(self, field: str, by: str, sides: tuple[str, str], **wanted: object) -> Comparison:
        """Compare two sides' values of a field, such as seconds, made in turn. by: the field that names the
        side."""
        before, after = (
            tuple(getattr(sample, field) for sample in self.only(**{by: side}, **wanted)) for side in sides
        )
        return Comparison(*sides, before, after, {}, {})

    def to_dict(self) -> dict:
        """The JSON form. The kind comes first: by it a record is found."""
        raw = vars(self) | {"host": self.host.to_dict(), "samples": list(map(as_json, self.samples))}
        return {name: value for name, value in raw.items() if value is not None}


def as_json(sample: Any) -> dict:
    """The JSON form of a sample: a dict as it is, of a dataclass its fields, or what it says itself."""
    if isinstance(sample, dict):
        return sample
    return sample.to_dict() if hasattr(sample, "to_dict") else asdict(sample)


def table_of(rows: Mapping[Any, Mapping[str, Any]], named: str) -> pd.DataFrame:
    """A table of these rows. named: what their names are."""
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(named)
