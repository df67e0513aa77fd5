"""What an installation takes: data/installation.json, measured once per build of PyTorch, on Linux."""

import json
from dataclasses import dataclass

from labkit.paths import ROOT

INSTALLATION = ROOT / "data" / "installation.json"


@dataclass(frozen=True)
class Installation:
    """An installation with one build of PyTorch: gigabytes of disk, and minutes on a machine."""

    brings: str
    gigabytes: float
    minutes: int
    machine: str
    torch: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.gigabytes} GB of disk (torch {self.torch}, {self.minutes} minutes on {self.machine}, "
            f"{self.date})"
        )


def load_installations() -> tuple[Installation, Installation]:
    """The installation with CUDA, and the one for a CPU."""
    cuda, cpu = (Installation(**build) for build in json.loads(INSTALLATION.read_text("utf-8")))
    return cuda, cpu
