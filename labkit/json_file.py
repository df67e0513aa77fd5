"""Reading JSON files: whatever is wrong with one is a ValueError that says so."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from labkit.checks import quoted, shown

MOST_BYTES = 256 << 20  # the largest tokenizers have an eighth of it


def read_json(path: Path) -> object:
    """The value in a UTF-8 file. Raises ValueError saying what is wrong with the file, by its name."""
    return parse_json(path.name, read_bytes(path))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a UTF-8 file; an empty one if there is no such file. Raises ValueError for all else."""
    raw = read_json(path) if is_there(path) else {}
    if not isinstance(raw, dict):
        raise ValueError(f"{path.name} holds {shown(raw)}, not an object")
    return raw


def is_there(path: Path) -> bool:
    """Whether there is a file of that name. Raises ValueError unless it is a regular file."""
    if not os.path.lexists(path):
        return False
    check_regular(path)
    return True


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file of `MOST_BYTES` at most.

    Raises ValueError for anything else: a pipe would be waited for.
    """
    check_regular(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB, which no such file is")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None


def check_regular(path: Path) -> None:
    """Raises ValueError unless `path` is a regular file, or a link to one."""
    try:
        if path.is_file():
            return
        what = "is a link to nothing" if path.is_symlink() and not path.exists() else "is no regular file"
        found = path.is_symlink() or path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise ValueError(f"{shown(path.name)} cannot be read: {error.strerror}") from None
    raise ValueError(f"{path.name} {what if found else 'is missing'}")


def parse_json(name: str, raw: bytes) -> object:
    """The value of JSON in UTF-8. Raises ValueError, naming `name`, for invalid JSON or a repeated key."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=unique_keys)
    except RecursionError:
        raise ValueError(f"{name} is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {quoted(error)}") from None


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object as dict. Raises ValueError if a key is given twice: only one of the two can be meant."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"{shown(next(key for key, count in counts.items() if count > 1))} is given twice")
    return made
