"""The notebooks: the home page, lessons and pages, and what goes deeper, which has its lesson's file name."""

from pathlib import Path

from labkit.paths import ROOT

FOLDER = ROOT / "notebooks"
HOME = FOLDER / "index.ipynb"
CORES = sorted({*FOLDER.glob("*.ipynb")} - {HOME})
DEEPER = sorted(FOLDER.glob("deeper/*.ipynb"))
NOTEBOOKS = [*CORES, *DEEPER]


def name_of(path: Path) -> str:
    """A notebook's path below the folder of all, without its ending."""
    return path.relative_to(FOLDER).with_suffix("").as_posix()
