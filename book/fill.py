"""`make book`: copies all pages to book/pages, fills the gaps of the lessons with their hints' lines, and
runs those lessons, so that the site shows what a reader gets who has done every step."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from skeletons import WITH_STEPS, steps_of  # tests/support

from labkit.paths import ROOT

PAGES = ROOT / "book" / "pages"
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "book", "mine", "tests")
SKELETON = "As the lesson gives it:\n\n```python\n{}\n```\n\nFilled, and what it gets:"


def filled(path: Path) -> nbformat.NotebookNode:
    """The notebook with every gap filled; the code of each step is behind a toggle, below its skeleton."""
    notebook = nbformat.read(path, as_version=4)
    steps = {step.skeleton: step for step in steps_of(path)}
    cells = []
    for cell in notebook.cells:
        if step := steps.get(cell.source):
            cells.append(nbformat.v4.new_markdown_cell(SKELETON.format(step.skeleton)))
            cell.source = step.solved
            cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
        cells.append(cell)
    notebook.cells = cells
    return notebook


def main() -> None:
    """Write the pages. Each notebook is run for a reader who has done nothing before it."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT, PAGES, ignore=LEFT_OUT)
    shutil.copytree(ROOT / "book" / "_static", PAGES / "_static")
    for settings in ("_config.yml", "_toc.yml"):
        shutil.copy(ROOT / "book" / settings, PAGES)
    for path in WITH_STEPS:
        print(f"running {path.name} with its gaps filled", file=sys.stderr)
        notebook = filled(path)
        with tempfile.TemporaryDirectory() as mine:
            os.environ["LABKIT_MINE"] = mine
            NotebookClient(notebook, timeout=None, resources={"metadata": {"path": path.parent}}).execute()
        nbformat.write(notebook, PAGES / "notebooks" / path.name)


if __name__ == "__main__":
    main()
