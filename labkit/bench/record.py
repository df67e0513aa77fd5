"""Results worth keeping: raw samples with all that is needed to judge them, as JSON under data/results/."""

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from labkit.doctor import driver_version
from labkit.model.checkpoint import ROOT

RESULTS = ROOT / "data" / "results"
REQUIRED = ("kind", "date", "commit", "command", "host", "settings", "samples")


def describe_host(device: torch.device) -> dict[str, str | int | None]:
    """The machine and the versions behind a figure."""
    import triton

    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "driver": driver_version() if on_gpu else None,
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def current_commit() -> str:
    """The commit that runs, or LABKIT_COMMIT where the code was copied without its history."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else os.environ.get("LABKIT_COMMIT", "unknown")


def make_record(kind: str, device: torch.device, settings: dict, samples: list[dict]) -> dict:
    """A record of the command that runs now. samples: raw measurements, one dict for each thing measured."""
    return {
        "kind": kind,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "command": shlex.join(["python", "-m", "labkit.bench", *sys.argv[1:]]),
        "host": describe_host(device),
        "settings": settings,
        "samples": samples,
    }


def write_record(record: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def load_record(name: str) -> dict:
    """The record `name`.json of data/results. Raises ValueError if it lacks something that a record has."""
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    missing = [key for key in REQUIRED if key not in record]
    if missing:
        raise ValueError(f"record {name} lacks {', '.join(missing)}")
    return record
