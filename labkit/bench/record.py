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

from labkit.bench.shape import COUNT, NUMBER, POSITIVE, TEXT, TIME, OrNull, check_shape
from labkit.checks import shown
from labkit.doctor import driver_version
from labkit.errors import RecordError
from labkit.json_file import read_json
from labkit.paths import RESULTS, ROOT

# The shape of a record, and by its kind of its settings and of each sample: see `check_shape`. Readers rely
# on it.
RECORD = {
    "kind": TEXT,
    "date": TEXT,
    "commit": TEXT,
    "command": TEXT,
    "host": {
        "device": TEXT,
        "driver": OrNull(TEXT),
        "cpu": TEXT,
        "cpu_cores": OrNull(COUNT),
        "python": TEXT,
        "torch": TEXT,
        "triton": OrNull(TEXT),
    },
    "bandwidth": POSITIVE,
    "settings": {"model": TEXT},
    "samples": [{}],
}
WORKLOAD = {"num_requests": COUNT, "max_new_tokens": COUNT, "max_batch_size": COUNT}
SETTINGS = dict.fromkeys(("comparison", "scheduler", "streaming", "ladder", "peers"), WORKLOAD)
PATHS = {str: COUNT}
SPANS = [(TEXT, NUMBER, NUMBER)]
RUN = {
    "rung": TEXT,
    "seconds": POSITIVE,
    "prefill_seconds": TIME,
    "decode_seconds": TIME,  # 0 where nothing was decoded
    "tokens": COUNT,
    "decoded_tokens": COUNT,
    "decode_steps": COUNT,
    "append_paths": PATHS,
    "prompt_lens": [COUNT],
    "new_tokens": [COUNT],
    "ttft": [TIME],
    "queue_wait": [TIME],
    "tpot": [TIME],
    "latency": [TIME],
    "itl_us": [(COUNT, [NUMBER])],
    "limit_seconds": TIME,
}
SAMPLE = {
    "profile": {
        "rung": TEXT,
        "batch_size": COUNT,
        "step_seconds": [POSITIVE, ...],
        "append_paths": PATHS,
        "limit_seconds": POSITIVE,
        "profile": {
            "batch_size": COUNT,
            "duration": POSITIVE,
            "ranges": SPANS,
            "operators": SPANS,
            "kernels": SPANS,
        },
    },
    "cost_card": {
        "rung": TEXT,
        "batch_size": COUNT,
        "key": {"model": TEXT, "options": {str: TEXT}, "block_size": COUNT, "prompt_lens": [COUNT]},
        "card": {
            "batch_size": COUNT,
            "append_paths": PATHS,
            "host": dict.fromkeys(
                ("manager_calls", "kv_block_infos", "aten_ops", "index_tensors", "kv_bytes_written"), COUNT
            ),
            "device": OrNull(
                {
                    "kernels": COUNT,
                    "h2d_copies": COUNT,
                    "h2d_bytes": COUNT,
                    "h2d_synchronizing": COUNT,
                    "d2h_copies": COUNT,
                    "synchronizations": COUNT,
                    "source": TEXT,
                }
            ),
        },
    },
    "host_time": {
        "rung": TEXT,
        "batch_size": COUNT,
        "num_layers": POSITIVE,
        "step_seconds": [TIME, ...],
        "tables_seconds": [TIME, ...],
        "append_seconds": [TIME, ...],
    },
    "kv_append": {
        "path": TEXT,
        "batch_size": COUNT,
        "device_seconds": [POSITIVE, ...],
        "host_seconds": [POSITIVE, ...],
        "num_bytes": COUNT,
    },
    "attention": {
        "kernel": TEXT,
        "batch_size": COUNT,
        "context_len": COUNT,
        "splits": COUNT,
        "us": POSITIVE,
        "num_bytes": COUNT,
        "seconds": [POSITIVE, ...],
        "copy_bytes_per_second": POSITIVE,
    },
    "decode_kernels": {
        "rung": TEXT,
        "batch_size": COUNT,
        "context_len": COUNT,
        "step_us": POSITIVE,
        "gpu_busy_us": TIME,
        "idle_share": NUMBER,
        "kernels": [{"name": TEXT, "count": NUMBER, "us": TIME}],
    },
    "comparison": {
        "comparison": {
            "before": TEXT,
            "after": TEXT,
            "before_samples": [POSITIVE, ...],
            "after_samples": [POSITIVE, ...],
            "before_paths": PATHS,
            "after_paths": PATHS,
            "path": OrNull(TEXT),
        },
        "limit_seconds": TIME,
    },
    "scheduler": RUN,
    "streaming": RUN,
    "ladder": RUN,
    "peers": {
        "engine": TEXT,
        "seconds": POSITIVE,
        "first_token_seconds": OrNull(TIME),
        "tokens": COUNT,
        "tokens_per_second": POSITIVE,
        "equal_requests": COUNT,
        "limit_seconds": TIME,
    },
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
    thing measured. Raises RecordError if one lacks what its kind has.
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


def check_record(name: str, record: object) -> None:
    """Raises RecordError saying what the record lacks, or which part of it is not what readers expect."""
    name = f"record {name}"
    check_shape(name, record, RECORD)
    if record["kind"] not in SAMPLE:
        raise RecordError(f"{name} is of no known kind: {shown(record['kind'])}")
    if not record["samples"]:
        raise RecordError(f"{name} has no samples")
    check_shape(name, record["settings"], SETTINGS.get(record["kind"], {}), "settings")
    for i, sample in enumerate(record["samples"]):
        check_shape(name, sample, SAMPLE[record["kind"]], f"sample {i}")


def write_record(record: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def load_record(name: str) -> dict:
    """The record `name`.json of data/results. Raises RecordError if there is none, or if it is not what a
    record is."""
    path = RESULTS / f"{name}.json"
    if not isinstance(name, str) or not name or path.parent != RESULTS or "\0" in name:
        raise RecordError(f"{shown(name)} is no name of a record: it is that of a file, without .json")
    record = read_record(path)
    check_record(name, record)
    return record


def read_record(path: Path) -> object:
    """What the file holds, unchecked. Raises RecordError naming the file if it cannot be read."""
    try:
        return read_json(path)
    except ValueError as error:
        raise RecordError(f"{error} (in {path.parent})") from error


def load_records(kind: str) -> dict[str, dict]:
    """All records of a kind under data/results, by name; your own are among them once you made them."""
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: load_record(path.stem) for path in paths if kind_of(path) == kind}


def kind_of(path: Path) -> object:
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
