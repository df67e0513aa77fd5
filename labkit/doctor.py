"""`python -m labkit.doctor`: what this machine can run, and what to do about what it can't.

Exit status 0 if the lessons can run, 1 if something that they need is missing. Packages are imported
inside the checks, and labkit's own modules too, so that a missing or broken one becomes a line of the table.
"""

from __future__ import annotations  # an older Python must get far enough to be told that it is too old

import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "data/tiny-gpt2"
REINSTALL = "make lab, or pip install -e . in a fresh environment"
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"  # as PCI numbers them


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    status: "ok"; "off", the lessons run without it; or "missing", they do not.
    """

    what: str
    status: str
    detail: str
    remedy: str = ""


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def try_import(name: str) -> tuple[ModuleType | None, str]:
    """The module, or None and why it does not import."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        return None, "not installed" if error.name == name else f"does not import: {first_line(error)}"
    except Exception as error:  # a broken package may raise anything
        return None, f"does not import: {first_line(error)}"


def python_version() -> Finding:
    version = "{}.{}.{}".format(*sys.version_info[:3])
    if sys.version_info < (3, 11):
        return Finding(
            "Python", "missing", f"{version} is too old", "Python 3.11 or newer: make lab PYTHON=…"
        )
    return Finding("Python", "ok", version)


def requirements(extra: str = "") -> list[str]:
    """What pyproject.toml asks for on this platform: the dependencies, or those of an extra."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [text for text in wanted if (marker := Requirement(text).marker) is None or marker.evaluate()]


def package(requirement: str) -> Finding:
    """Whether a package is installed, as new as it must be, and importable."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(wanted.name, "missing", "not installed", REINSTALL)
    if not wanted.specifier.contains(version, prereleases=True):
        return Finding(wanted.name, "missing", f"{version}, but labkit needs {wanted.specifier}", REINSTALL)
    module, problem = try_import(wanted.name)
    if module is None:
        return Finding(wanted.name, "missing", f"{version} {problem}", REINSTALL)
    return Finding(wanted.name, "ok", version)
