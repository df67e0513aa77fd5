"""Where the project and its records are."""

import os
import re
from pathlib import Path

from labkit.errors import ProjectError

ROOT = Path(__file__).resolve().parents[1]  # the project: notebooks run one folder below it
RESULTS = ROOT / "data" / "results"
# What the reader makes: copies of the notebooks, parts, progress. Git leaves it alone; a test has its own.
MINE = Path(os.environ.get("LABKIT_MINE") or ROOT / "notebooks" / "mine")
# What was measured of this machine, for all projects of its user.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "labkit"
LONGEST_SLUG = 60


def has_project() -> bool:
    """Whether ROOT is the project, and not the folder of an installed package that came without it."""
    return (ROOT / "pyproject.toml").is_file()


def require_project() -> None:
    """Raises ProjectError, which says how to get it, where the package was installed without its project."""
    if not has_project():
        raise ProjectError(
            f"labkit was installed without its project: {ROOT} has the package alone, without notebooks, "
            "models and records. Clone the project with git, and in the clone run `make lab`, or "
            "`pip install -e .`"
        )


def slug(text: str) -> str:
    """A text as a part of a file's name: small letters and digits, with underscores between."""
    without_marks = re.sub(r"\((r|tm|c)\)", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "_", without_marks)[:LONGEST_SLUG].strip("_") or "unknown"
