"""Where the project and its records are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the project: notebooks run one folder below it
RESULTS = ROOT / "data" / "results"
# What the reader makes: copies of the notebooks, parts, progress. Git leaves it alone; a test has its own.
MINE = Path(os.environ.get("LABKIT_MINE") or ROOT / "notebooks" / "mine")
