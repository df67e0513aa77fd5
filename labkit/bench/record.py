"""A record of what a command measured: from which machine, commit and command, and where it goes."""

import argparse
import errno
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import torch

from labkit import paths
from labkit.bench.limit import Bandwidth
from labkit.checks import shown
from labkit.doctor import driver_version, first_words
from labkit.errors import OptionError, ProjectError
from labkit.paths import ROOT, has_project
from labkit.results.files import KINDS
from labkit.results.record import Host, Record

CPUINFO = Path("/proc/cpuinfo")  # Linux's
DRAWN_IN = "notebooks/deeper/20_complete_engine.ipynb"
DRAWN = ("ladder", "host_time")  # kinds of which it draws every record


def describe_host(device: torch.device) -> Host:
    """This machine and the versions that run on it, for a record."""
    try:
        from triton import __version__ as triton_version
    except ImportError:  # there is none for Windows and macOS
        triton_version = None
    return Host(
        device=device_name(device),
        driver=driver_version() if device.type == "cuda" else None,
        cpu=cpu_name(),
        cpu_cores=os.cpu_count(),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=triton_version,
        threads=torch.get_num_threads(),
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The CPU's model name, as far as the system says; else the kind of machine, such as "aarch64"."""
    if CPUINFO.exists():
        named = re.search(r"^model name\s*:\s*(\S.*)", CPUINFO.read_text(errors="replace"), re.MULTILINE)
    else:
        named = re.search(r"(\S.*)", first_words(["sysctl", "-n", "machdep.cpu.brand_string"]))  # of macOS
    return named[1].strip() if named else platform.processor() or platform.machine()


def current_commit() -> str:
    """The commit of this code: LABKIT_COMMIT where the code was copied without its history, else git's.

    "unknown" for a package that was installed without its project, for it may lie in another one's.
    """
    if commit := os.environ.get("LABKIT_COMMIT"):
        return commit
    if not has_project():
        return "unknown"
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else "unknown"


def make_record(
    kind: str, device: torch.device, bandwidth: Bandwidth, settings: dict, samples: Sequence[object]
) -> Record:
    """A record of the command that runs now.

    bandwidth: as measured on the device. samples: raw measurements, one per thing measured.
    """
    return KINDS[kind][0](
        kind=kind,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=shlex.join(["python", "-m", "labkit.bench", *map(without_folder, sys.argv[1:])]),
        host=describe_host(device),
        bandwidth=bandwidth.copy,
        settings=settings,
        samples=tuple(samples),
        read_bandwidth=bandwidth.read,
    )


def without_folder(argument: str) -> str:
    """A command's argument; of an absolute path only the last name, for where it was is nobody's business."""
    return re.sub(r"^(--[\w-]+=)?/.*/", r"\1", argument)


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON, and make the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record.to_dict()) + "\n", encoding="utf-8")


# --- where it goes ---------------------------------------------------------------------------------------


def utf8(text: str) -> str:
    """The text itself. Raises ArgumentTypeError if what the terminal hands over is not valid UTF-8."""
    try:
        return text.encode().decode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not valid UTF-8") from None


def target_file(text: str) -> Path:
    """The type of a flag that takes a file to write. Writing is tried at once, and leaves nothing behind."""
    try_writing(Path(utf8(text)))
    return Path(text)


def try_writing(target: Path) -> None:
    """Make a file and the directories above it, then remove what was not there before.

    Raises ArgumentTypeError if that fails.
    """
    path = Path(os.path.realpath(target))
    was_there = os.path.lexists(path)
    try:
        if was_there and not path.is_file():
            raise OSError(errno.EINVAL, "there can be no file")
        with ExitStack() as made:
            for folder in reversed([folder for folder in path.parents if not folder.exists()]):
                folder.mkdir()
                made.callback(folder.rmdir)
            path.open("ab").close()  # which leaves a file that was there as it is
            if not was_there:
                made.callback(path.unlink)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {shown(str(target))}: {error.strerror}") from None


def own_target(kind: str, device: torch.device) -> Path:
    """A file in data/results, named after the kind of record and the machine.

    Writing to it is tried, and leaves nothing behind. Raises OptionError if it fails.
    """
    path = paths.RESULTS / f"{kind}_{paths.slug(device_name(device))}.json"
    try:
        paths.require_project()
        try_writing(path)
    except (ProjectError, argparse.ArgumentTypeError) as error:
        raise OptionError(f"{error}. Name a file with --json") from None
    return path


def tell(record: Record, path: Path) -> None:
    """Say where a record is and what shows it."""
    print(f"Record: {path}")
    if record.kind in DRAWN:
        here = "" if path.resolve().parent == paths.RESULTS else " Put it into data/results first."
        print(f"To see it: run {DRAWN_IN}; *Every machine, yours among them* shows it.{here}")
