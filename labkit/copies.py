"""The reader's own copies of the notebooks, in notebooks/mine/: what is done there is never in git's way.

`python -m labkit.copies` makes them; `python -m labkit`, which is `make lab`, does so first.
"""

import hashlib
import json
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit import paths
from labkit.errors import ProjectError

MADE_FROM = "labkit_made_from"  # metadata of a copy: the digest of its cells as they were when it was made


def make_copies() -> list[str]:
    """Copy each notebook, also of deeper/, that has no copy, and each whose cells have changed, unless the
    reader has written in the copy. Names of those that were left for that reason.

    Stored outputs are copied, but for those of cells that score a prediction: the reader is to predict first.
    Raises OSError where nothing can be written.
    """
    (paths.MINE / "deeper").mkdir(parents=True, exist_ok=True)
    folder = paths.ROOT / "notebooks"
    found = sorted([*folder.glob("*.ipynb"), *folder.glob("deeper/*.ipynb")])
    names = [path.relative_to(folder) for path in found]
    return [
        name.as_posix() for name in names if not _is_of_now(folder / name, paths.MINE / name, len(name.parts))
    ]


def _is_of_now(original: Path, copy: Path, depth: int) -> bool:
    """Make the copy if it may be made; whether it is of the notebook as it is now.

    depth: how many folders below the project the notebook is; the copy is one more.
    """
    notebook = nbformat.read(original, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # links between notebooks stay as they are
            cell.source = cell.source.replace("](" + depth * "../", "](" + (depth + 1) * "../")
        elif ".score(" in cell.source:
            cell.outputs, cell.execution_count = [], None
    newest = _digest(notebook)
    if copy.exists():
        made_from, now = _digests_of(copy)
        if newest == made_from or now != made_from:
            return newest == made_from
    notebook.metadata[MADE_FROM] = newest
    written = copy.with_suffix(".new")
    nbformat.write(notebook, written)
    written.replace(copy)
    return True


def _digests_of(copy: Path) -> tuple[str, str]:
    """The digests of a copy's cells: when it was made, and now."""
    try:
        notebook = nbformat.read(copy, as_version=4)
        return notebook.metadata.get(MADE_FROM, ""), _digest(notebook)
    except Exception:  # no notebook, or a damaged one; whatever is wrong, the file is the reader's
        return "", "unreadable"


def _digest(notebook: NotebookNode) -> str:
    """Of the cells without their outputs: what a run, and JupyterLab's saving, leave as it is."""
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def told(left: list[str]) -> str:
    """What the reader is told about copies that were left as they are, which may be none."""
    return "".join(
        f"{name} is newer now. Yours stays as it is, for you have written in it. "
        "To have the new one, rename or delete yours and start again.\n"
        for name in left
    )


def main() -> None:
    """Make the copies and say where they are."""
    try:
        paths.require_project()
    except ProjectError as error:
        sys.exit(str(error))
    left = make_copies()
    print(f"Your notebooks are in {paths.MINE}\n{told(left)}", end="")


if __name__ == "__main__":
    main()
