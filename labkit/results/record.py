"""What every record has: where it comes from, the settings of the command that made it, and its samples."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from labkit.errors import RecordError
from labkit.results.shape import COUNT, POSITIVE, TEXT, OrNull, Shape

HOST: dict[str, Shape] = {
    "device": TEXT,
    "driver": OrNull(TEXT),
    "cpu": TEXT,
    "cpu_cores": OrNull(COUNT),
    "python": TEXT,
    "torch": TEXT,
    "triton": OrNull(TEXT),
}
KINDS_OF_CPU = ("x86_64", "AMD64", "aarch64", "arm64")
RECORD: dict[str, Shape] = {
    "kind": TEXT,
    "date": TEXT,
    "commit": TEXT,
    "command": TEXT,
    "host": HOST,
    "bandwidth": POSITIVE,
    "settings": {"model": TEXT},
    "samples": [{}],
}


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
        """The JSON form. A field that a record need not have is left out where it is None."""
        raw = asdict(self)
        return {name: value for name, value in raw.items() if name in HOST or value is not None}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A host from its JSON form, checked before."""
        known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
        return cls(**known)


class Sample(Protocol):
    """One thing that a record measured, in raw numbers."""

    SHAPE: ClassVar[Shape]  # what its JSON form must have, which `from_dict` relies on

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds the sample."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Sample":
        """A sample from its JSON form, checked before against `SHAPE`."""


class PlainSample:
    """The JSON form of a sample that is a dataclass of numbers, texts, tuples and dictionaries of them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds it; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A sample from its JSON form, checked before against its `SHAPE`; other keys are ignored."""
        known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in known.items()})


@dataclass(frozen=True)
class Record:
    """What a command measured, with all that is needed to judge it. There is a subclass per kind of sample.

    bandwidth: bytes per second of a copy on the device. settings: the command's flags, and what else it was
    told. read_bandwidth: bytes per second of reading alone; None in older records.
    """

    kind: str
    date: str
    commit: str
    command: str
    host: Host
    bandwidth: float
    settings: Mapping[str, Any]
    samples: tuple[Sample, ...]
    read_bandwidth: float | None = None

    SAMPLE: ClassVar[type[Sample]]  # the class of `samples`
    SETTINGS: ClassVar[Shape] = {}

    @property
    def model(self) -> str:
        """The name of the model that was measured; for a kernel alone, text that says there was none."""
        return self.settings["model"]

    def to_dict(self) -> dict:
        """The JSON form. The kind comes first: by it a record is found."""
        read = {} if self.read_bandwidth is None else {"read_bandwidth": self.read_bandwidth}
        return {
            "kind": self.kind,
            "date": self.date,
            "commit": self.commit,
            "command": self.command,
            "host": self.host.to_dict(),
            "bandwidth": self.bandwidth,
            **read,
            "settings": dict(self.settings),
            "samples": [sample.to_dict() for sample in self.samples],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A record from its JSON form, checked before by `check_record`."""
        about = {name: raw[name] for name in ("kind", "date", "commit", "command", "bandwidth", "settings")}
        samples = tuple(cls.SAMPLE.from_dict(sample) for sample in raw["samples"])
        read = raw.get("read_bandwidth")
        return cls(**about, host=Host.from_dict(raw["host"]), samples=samples, read_bandwidth=read)


@dataclass(frozen=True)
class WorkloadRecord(Record):
    """A record of a workload: requests that are served together."""

    SETTINGS: ClassVar[dict[str, Shape]] = {
        "num_requests": COUNT,
        "max_new_tokens": COUNT,
        "max_batch_size": COUNT,
    }

    @property
    def num_requests(self) -> int:
        """How many requests the workload has."""
        return self.settings["num_requests"]

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that a request makes."""
        return self.settings["max_new_tokens"]

    @property
    def max_batch_size(self) -> int:
        """The most requests that are decoded together."""
        return self.settings["max_batch_size"]


class OnRung(Protocol):
    """A sample that was measured on a rung."""

    @property
    def rung(self) -> str:
        """The rung's number, "00"."""


S = TypeVar("S", bound=OnRung)


def of_rung(samples: Sequence[S], rung: str) -> list[S]:
    """The samples of a rung, in order. Raises RecordError naming the rungs there are if it has none."""
    if found := [sample for sample in samples if sample.rung == rung]:
        return found
    known = ", ".join(dict.fromkeys(sample.rung for sample in samples))
    raise RecordError(f"the record has no runs of rung {rung!r}; it has {known}")
