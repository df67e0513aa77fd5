"""Variants of a kernel or a step that were measured once; not all are in the package: a file under data/."""

import json
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

from labkit.learn.verdict import wrapped
from labkit.paths import ROOT


@dataclass(frozen=True)
class Variants:
    """A file under data/ with the device, the date, and parts: each with how it was measured, and samples."""

    name: str

    def measured(self) -> SimpleNamespace:
        """All of the file, its names as attributes."""
        return _read(ROOT / "data" / f"{self.name}.json")

    def part(self, what: str) -> SimpleNamespace:
        """A measured part of the file ("steps"), or of a part ("ends.steps")."""
        return attrgetter(what)(self.measured())

    def source(self, what: str) -> str:
        """Where and how `part(what)` was measured."""
        about, its = self.measured(), self.part(what)
        return wrapped(f"{about.device}, {getattr(its, 'date', about.date)}: {its.measured}")


@cache
def _read(path: Path) -> SimpleNamespace:
    text = path.read_text(encoding="utf-8")
    return json.loads(text, object_hook=lambda entries: SimpleNamespace(**entries))
