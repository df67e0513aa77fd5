"""The site shows each step as it is given and, behind a toggle, as its hints fill it."""

import importlib.util

import pytest
from skeletons import WITH_STEPS, steps_of

from labkit.learn.kept import GAP_MARK
from labkit.paths import ROOT

if importlib.util.find_spec("nbclient") is None:
    pytest.skip("nbclient comes with nbconvert, which is not here", allow_module_level=True)
SPEC = importlib.util.spec_from_file_location("fill", ROOT / "book" / "fill.py")
fill = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fill)


@pytest.mark.parametrize("path", WITH_STEPS, ids=lambda path: path.stem)
def test_every_step_is_shown_as_it_is_given_and_filled_behind_a_toggle(path):
    cells = fill.filled(path).cells
    places = [i for i, cell in enumerate(cells) if "hide-input" in cell.metadata.get("tags", [])]
    assert [cells[i].source for i in places] == [step.solved for step in steps_of(path)]
    assert not any(GAP_MARK in cell.source for cell in cells if cell.cell_type == "code")
    for i, step in zip(places, steps_of(path), strict=True):
        assert cells[i - 1].cell_type == "markdown" and step.skeleton in cells[i - 1].source
