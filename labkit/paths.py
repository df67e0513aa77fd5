"""Where the project and its records are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the project: notebooks run one folder below it
RESULTS = ROOT / "data" / "results"
