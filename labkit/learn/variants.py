"""Variants of a kernel or a step that were measured once; not all are in the package: a file under data/."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from labkit.learn.verdict import wrapped
from labkit.paths import ROOT


@dataclass(frozen=True)
class Variants:
    """A file under data/ with the device, the date, and parts: each with how it was measured, and samples."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / "data" / f"{self.name}.json"

    def measured(self) -> SimpleNamespace:
        """All of the file, its names as attributes."""
        return _read(self.path)

    def part(self, what: str) -> SimpleNamespace:
        """A measured part of the file ("steps"), or of a part ("ends.steps").

        Raises ValueError for a part that the file does not have.
        """
        found = self.measured()
        for name in what.split("."):
            found = getattr(found, name, None)
        if not hasattr(found, "measured"):
            raise ValueError(f"{self.path.name} has no measured part {what!r}: name one that it has")
        return found

    def source(self, what: str) -> str:
        """Where and how `part(what)` was measured. Raises ValueError for a part that there is not."""
        about, its = self.measured(), self.part(what)
        return wrapped(f"{about.device}, {getattr(its, 'date', about.date)}: {its.measured}")


@cache
def _read(path: Path) -> SimpleNamespace:
    text = path.read_text(encoding="utf-8")
    return json.loads(text, object_hook=lambda entries: SimpleNamespace(**entries))
