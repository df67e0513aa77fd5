"""Results worth keeping: raw samples with all that is needed to judge them, as JSON under data/results/."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from labkit.doctor import driver_version
from labkit.model.checkpoint import ROOT

RESULTS = ROOT / "data" / "results"
REQUIRED = ("kind", "date", "commit", "command", "host", "bandwidth", "settings", "samples")
HOST = ("device", "driver", "cpu", "cpu_cores", "python", "torch", "triton")
RUN = (
    "seconds",
    "prefill_seconds",
    "decode_seconds",
    "tokens",
    "decoded_tokens",
    "decode_steps",
    "append_paths",
    "ttft",
    "queue_wait",
    "tpot",
    "latency",
    "itl_us",
    "limit_seconds",
)
# What each sample of a record of that kind has.
SAMPLE = {
    "profile": ("rung", "batch_size", "step_seconds", "append_paths", "limit_seconds", "profile"),
    "cost_card": ("rung", "batch_size", "key", "card"),
    "host_time": ("rung", "batch_size", "num_layers", "step_seconds", "tables_seconds", "append_seconds"),
    "kv_append": ("path", "batch_size", "device_seconds", "host_seconds", "num_bytes"),
    "attention": ("kernel", "batch_size", "context_len", "splits", "us", "num_bytes", "seconds"),
    "decode_kernels": (
        "rung",
        "batch_size",
        "context_len",
        "step_us",
        "gpu_busy_us",
        "idle_share",
        "kernels",
    ),
    "comparison": ("comparison", "limit_seconds"),
    "scheduler": ("rung", *RUN),
    "streaming": ("rung", *RUN),
    "ladder": ("rung", *RUN),
    "peers": (
        "engine",
        "seconds",
        "first_token_seconds",
        "tokens",
        "tokens_per_second",
        "equal_requests",
        "limit_seconds",
    ),
}


def describe_host(device: torch.device) -> dict[str, str | int | None]:
    """The machine and the versions behind a figure."""
    try:
        from triton import __version__ as triton_version
    except ImportError:  # there is none for Windows and macOS
        triton_version = None
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "driver": driver_version() if on_gpu else None,
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton_version,
    }


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def current_commit() -> str:
    """The commit that runs: LABKIT_COMMIT where the code was copied without its history, else git's."""
    if commit := os.environ.get("LABKIT_COMMIT"):
        return commit
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else "unknown"


def make_record(
    kind: str, device: torch.device, bandwidth: float, settings: dict, samples: list[dict]
) -> dict:
    """A record of the command that runs now.

    bandwidth: of a copy on the device, in bytes a second. samples: raw measurements, one dict for each
    thing measured. Raises ValueError if one lacks what its kind has.
    """
    record = {
        "kind": kind,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "command": shlex.join(["python", "-m", "labkit.bench", *sys.argv[1:]]),
        "host": describe_host(device),
        "bandwidth": bandwidth,
        "settings": settings,
        "samples": samples,
    }
    check_record("to be written", record)
    return record


def check_record(name: str, record: dict) -> None:
    """Raises ValueError naming what the record lacks."""

    def check(where: str, keys: tuple[str, ...], found: dict) -> None:
        if missing := [key for key in keys if key not in found]:
            raise ValueError(f"record {name} lacks {', '.join(missing)}{where}")

    check("", REQUIRED, record)
    check(" in host", HOST, record["host"])
    if record["kind"] not in SAMPLE:
        raise ValueError(f"record {name} is of no known kind: {record['kind']!r}")
    if not record["samples"]:
        raise ValueError(f"record {name} has no samples")
    for i, sample in enumerate(record["samples"]):
        check(f" in sample {i}", SAMPLE[record["kind"]], sample)


def write_record(record: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def load_record(name: str) -> dict:
    """The record `name`.json of data/results. Raises ValueError if it lacks something that a record has."""
    record = read_record(name)
    check_record(name, record)
    return record


def read_record(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def load_records(kind: str) -> dict[str, dict]:
    """All records of a kind under data/results, by name; your own are among them once you made them."""
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: load_record(path.stem) for path in paths if kind_of(path) == kind}


def kind_of(path: Path) -> str | None:
    """The kind of a record, by which it is found. It comes first, so that megabytes of other kinds need not
    be read; a record that was put in another order is read whole."""
    with path.open(encoding="utf-8") as file:
        first = re.match(r'\s*{\s*"kind"\s*:\s*"(\w+)"', file.read(100))
    return first[1] if first else read_record(path.stem).get("kind")


def results(kind: str) -> pd.DataFrame:
    """The samples of all records of a kind, a row each, with the device, commit and model they belong to."""
    return pd.DataFrame(
        [
            {
                "record": name,
                "device": record["host"]["device"],
                "date": record["date"],
                "commit": record["commit"][:8],
                "model": record["settings"]["model"],
                "bandwidth": record["bandwidth"],
                **sample,
            }
            for name, record in load_records(kind).items()
            for sample in record["samples"]
        ]
    )
