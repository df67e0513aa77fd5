"""What every notebook promises. nbval compares the outputs; this sees that there is something to compare."""

import nbformat
import pytest

from labkit.ladder import LADDER
from labkit.model.checkpoint import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IGNORED_TAG, IGNORED_LINE = "nbval-ignore-output", "# NBVAL_IGNORE_OUTPUT"
COMPARED = {"text/plain", "text/html", "text/markdown"}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def is_ignored(cell) -> bool:
    return IGNORED_TAG in cell.metadata.get("tags", []) or IGNORED_LINE in cell.source.splitlines()


def is_compared(cell) -> bool:
    """Whether nbval compares text of this cell: printed, or displayed with more than a figure's size."""
    if is_ignored(cell):
        return False
    printed = [out for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    displayed = [out for out in cell.outputs if "data" in out and "image/png" not in out.data]
    return bool(printed) or any(COMPARED & out.data.keys() for out in displayed)


def test_the_ladder_and_the_folder_name_the_same_notebooks():
    assert [path.name for path in NOTEBOOKS] == [rung.notebook for rung in LADDER.values()]


@every_notebook
def test_enough_of_a_notebook_is_compared(path):
    cells = code_cells(path)
    with_output = [cell for cell in cells if cell.outputs]
    compared = sum(map(is_compared, cells))
    assert compared >= 12
    assert sum(map(is_ignored, with_output)) <= 0.4 * len(with_output)


@every_notebook
def test_a_notebook_stores_one_clean_run(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert not [out for out in cell.outputs if out.output_type == "error"], cell.source
        assert "execution" not in cell.metadata, "timing metadata is stored"
        assert not [out for out in cell.outputs if out.get("name") == "stderr"], cell.source


@every_notebook
def test_a_notebook_begins_with_the_bootstrap_and_installs_nothing(path):
    cells = code_cells(path)
    assert cells[0].source == f'from labkit import lab\n\nhere = lab.start("{path.name[:2]}")'
    for cell in cells:
        first = [line.lstrip()[:1] for line in cell.source.splitlines()]
        assert "%" not in first and "!" not in first, f"a magic or a shell line: {cell.source}"


@every_notebook
def test_a_notebook_is_small_enough_to_read_on_the_web(path):
    assert path.stat().st_size < 1_500_000
