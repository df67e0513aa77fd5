"""Bad input as data: what is handed in, to which entry of the project, and by which name it is refused."""

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bad_values import fresh
from helpers import GREEDY, make_engine
from streaming_helpers import labkit_threads

from labkit import paths
from labkit.engine import StreamingServer
from labkit.errors import LabkitError


class World:
    """What bad input is handed to, and what it must leave as it is: an engine in which a request waits, a
    server, a folder, and what the reader has made."""

    def __init__(self, folder: Path) -> None:
        self.engine = make_engine()
        self.engine.add_request((1, 2, 3), GREEDY)
        self.server = StreamingServer(make_engine(), max_inflight_requests=3)
        self.folder = folder

    def state(self) -> tuple:
        """All that a refused call must not change."""
        self.engine.check_integrity()
        return (
            *(self.engine.stats(), self.server.engine.stats(), len(labkit_threads())),
            *(files_below(self.folder), files_below(paths.MINE), sorted(os.environ), Path.cwd()),
        )

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A folder for damaged files, which is taken away with them."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)

    @contextmanager
    def untouched(self, folder: Path) -> Iterator[None]:
        """Nothing inside of the block changes a file there."""
        before = files_below(folder)
        try:
            yield
        finally:
            assert files_below(folder) == before

    def close(self) -> None:
        self.server.close()


def files_below(folder: Path) -> list[tuple]:
    """Every file's name, size and time of change."""
    found = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return [(path, stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in found]


@dataclass(frozen=True)
class BadInput:
    """A call with something wrong in it.

    entry: what is called. name: the argument, flag, field or file that is wrong, as a pattern that the
    message must have. call: with the world; a command ends with SystemExit instead of `error`.
    """

    entry: str
    name: str
    label: str
    call: Callable[[World], object]
    error: type[BaseException] = LabkitError


Call = Callable[..., object]


def arguments_of(
    entry: str, call: Call, tables: Mapping[str, Mapping[str, Any]], error: type[BaseException]
) -> list[BadInput]:
    """A case for each value of each argument; `call` takes the world and the bad argument by its name."""
    return [
        BadInput(
            entry, rf"\b{name}\b", label, lambda world, n=name, v=value: call(world, **{n: fresh(v)}), error
        )
        for name, table in tables.items()
        for label, value in table.items()
    ]


def values_of(error: type[BaseException], *rows: tuple[str, str, Call, Mapping[str, Any]]) -> list[BadInput]:
    """A case for each value of each row: an entry, a pattern of the message, what takes the world and the
    value, and the values by their labels."""
    return [
        BadInput(entry, name, label, lambda world, call=call, v=value: call(world, fresh(v)), error)
        for entry, name, call, table in rows
        for label, value in table.items()
    ]


def lines_of(main: Callable[[], object], program: str, lines: Iterable[tuple[str, str]]) -> list[BadInput]:
    """A case for each command line, with the name that its last line of complaint must have."""

    def run(world: World, line: str) -> None:
        before, sys.argv = sys.argv, [program, *shlex.split(line)]
        try:
            main()
        finally:
            sys.argv = before

    return [
        BadInput(program, name, line[:60], lambda world, words=line: run(world, words), SystemExit)
        for line, name in lines
    ]
