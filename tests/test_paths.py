"""Where the project and its records are, whatever the working directory is."""

from pathlib import Path

import labkit
from labkit.paths import RESULTS, ROOT


def test_the_root_holds_the_package_and_the_records():
    assert Path(labkit.__file__).parent.parent == ROOT and ROOT.is_absolute()
    assert (ROOT / "pyproject.toml").is_file() and RESULTS.parent == ROOT / "data"
    assert list(RESULTS.glob("*.json"))
