"""How the tests that need a GPU ended when they last ran on one."""

from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.paths import RESULTS
from labkit.results.files import read_record
from labkit.results.record import Host
from labkit.results.typed import Count, read_as

KIND = "gpu_tests"
GPU_TESTS = RESULTS / f"{KIND}.json"


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
        return {"kind": KIND, **asdict(self), "host": self.host.to_dict()}


def load_gpu_tests(path: Path = GPU_TESTS) -> GpuTests:
    """The outcome in a file. Raises RecordError naming the file if it is missing or not such a record."""
    return read_as(GpuTests, read_record(path), path.name)
