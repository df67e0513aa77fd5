"""Where results go: files and folders that a flag names, and the record of the reader's own machine."""

import argparse
import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from labkit import paths
from labkit.bench.commands.flags import Flags
from labkit.bench.limit import Bandwidth, measure_bandwidth
from labkit.bench.record import device_name, make_record, write_record
from labkit.checks import shown
from labkit.errors import OptionError, ProjectError
from labkit.results import Record

DRAWN_IN = "notebooks/deeper/20_complete_engine.ipynb"
DRAWN = ("ladder", "host_time")  # kinds of which it draws every record


def utf8(text: str) -> str:
    """The text itself. Raises ArgumentTypeError if what the terminal hands over is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not valid UTF-8") from None
    return text


def target_file(text: str) -> Path:
    """The type of a flag that takes a file to write. Writing is tried at once, and leaves nothing behind."""
    try_writing(text, Path(utf8(text)))
    return Path(text)


def try_writing(text: str, path: Path) -> None:
    """Make a file and the directories above it, then remove what was not there before.

    Raises ArgumentTypeError, showing `text`, if that fails.
    """
    path = Path(os.path.realpath(path))
    was_there = os.path.lexists(path)
    try:
        if not text or (was_there and not path.is_file()):
            raise OSError(errno.EINVAL, "there can be no file")
        with ExitStack() as made:
            for folder in reversed([folder for folder in path.parents if not folder.exists()]):
                folder.mkdir()
                made.callback(folder.rmdir)
            path.open("ab").close()  # which leaves a file that was there as it is
            if not was_there:
                made.callback(path.unlink)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {shown(text)}: {error.strerror}") from None


def record_if_asked(
    args: Flags,
    kind: str,
    device: torch.device,
    samples: Sequence[object],
    bandwidth: Bandwidth | None = None,
    **more: object,
) -> None:
    """Write a record to the file that --json names, if it names one.

    bandwidth: by default measured now. more: settings beside the flags.
    """
    if args.json:
        settings = args.settings | more
        record = make_record(kind, device, bandwidth or measure_bandwidth(device), settings, samples)
        write_record(record, args.json)


# --- the record of this machine --------------------------------------------------------------------------


def own_target(args: argparse.Namespace, kind: str, device: torch.device) -> Path:
    """The file that --json names, or one in data/results, named after the kind and the machine.

    Writing to the latter is tried, and leaves nothing behind. Raises OptionError if it fails, before anything
    was measured.
    """
    if args.json:
        return args.json
    path = paths.RESULTS / f"{kind}_{paths.slug(device_name(device))}.json"
    try:
        paths.require_project()
        try_writing(str(path), path)
    except (ProjectError, argparse.ArgumentTypeError) as error:
        raise OptionError(f"{error}. Name a file with --json") from None
    return path


def write_own(record: Record, path: Path) -> None:
    """Write a record, and say where it is and what draws it."""
    write_record(record, path)
    print(f"Record: {path}")
    if record.kind in DRAWN:
        here = "" if path.resolve().parent == paths.RESULTS else " Put it into data/results first."
        print(f"To see it: run {DRAWN_IN}; *Every machine, yours among them* draws it.{here}")
