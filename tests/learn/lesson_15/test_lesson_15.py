"""Lesson 15's build steps: filled, they are a layer that passes every gate, and that can be kept."""

import re

import pytest
from skeletons import solved, steps_of

from labkit import lab, paths
from labkit.learn.lesson_15.gate import check_model
from labkit.learn.progress import progress
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/15_complete_engine.ipynb"


@pytest.mark.slow
def test_the_filled_layer_passes_is_noted_and_can_be_kept(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    shell, steps = solved(NOTEBOOK)
    assert len(list(steps)) == 2
    here, layer = lab.start("15"), shell.user_ns["MyInt8Linear"]
    (kept,) = here.keep(weights=layer)
    assert check_model(kept.load()).ok
    assert progress()["15"].gates == ("quantize", "layer", "weights")
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("step", steps_of(NOTEBOOK), ids=["matrix", "layer"])
def test_a_skeleton_runs_and_says_what_is_missing(step, capsys):
    shell, _ = solved(NOTEBOOK)
    for skeleton in steps_of(NOTEBOOK):
        capsys.readouterr()
        shell.run_cell(skeleton.skeleton).raise_error()
        if skeleton == step:
            break
    assert re.match(r"\w+ breaks a contract: .*8 bits", capsys.readouterr().out)
