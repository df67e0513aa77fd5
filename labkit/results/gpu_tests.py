"""How the tests that need a GPU ended when they last ran on one."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from labkit.paths import RESULTS
from labkit.results.files import read_record
from labkit.results.record import HOST, Host
from labkit.results.shape import COUNT, TEXT, TIME, Shape, check_shape

KIND = "gpu_tests"
GPU_TESTS = RESULTS / f"{KIND}.json"


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

    SHAPE: ClassVar[dict[str, Shape]] = {
        "date": TEXT,
        "commit": TEXT,
        "passed": COUNT,
        "failed": COUNT,
        "skipped": COUNT,
        "seconds": TIME,
        "num_gpus": COUNT,
        "host": HOST,
    }

    def to_dict(self) -> dict:
        """The JSON form; `from_dict` reads it."""
        return {"kind": KIND, **asdict(self), "host": self.host.to_dict()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The outcome from its JSON form, checked before against `SHAPE`."""
        fields = {name: raw[name] for name in cls.SHAPE}
        return cls(**{**fields, "host": Host.from_dict(raw["host"])})


def load_gpu_tests(path: Path = GPU_TESTS) -> GpuTests:
    """The outcome in a file. Raises RecordError naming the file if it is missing or not such a record."""
    raw = read_record(path)
    check_shape(path.name, raw, GpuTests.SHAPE)
    return GpuTests.from_dict(raw)
