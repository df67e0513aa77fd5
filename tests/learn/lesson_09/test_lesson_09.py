"""Lesson 09's build steps: whose kernels run, how many a step is, and what the cells say of a filled step."""

import nbformat
import pytest
from skeletons import solved

from labkit import watch
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/09_fused_and_split.ipynb"


@pytest.mark.slow
def test_the_reader_s_step_is_few_kernels_and_two_of_them_are_theirs(capsys, monkeypatch):
    shell, steps = solved(NOTEBOOK)
    here = shell.user_ns["here"]
    monkeypatch.setattr(type(here), "check", lambda self, **parts: "its gate is run by test_skeletons")
    for _ in steps:
        said = capsys.readouterr().out.splitlines()
    assert said[-1] == "norm_linear: yours, merge: yours"

    engine = here.build(layer_kernels=shell.user_ns["MyFusedStep"])
    launches = watch.log_step(engine, watch.steady_prompts(2, (20,))).launches
    assert watch.count_kernels(launches) == 6 * 6 + 5
    names = [(launch.name, launch.kernels) for launch in watch.layer_of(launches)]
    assert names[:3] == [("norm_linear", 1), ("attention", 2), ("linear_residual", 1)] and len(names) == 5


def test_an_unfilled_step_says_what_is_missing():
    """As stored in the notebook."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    outputs = {
        cell.source.rstrip().splitlines()[-1]: cell.outputs[0].get("text", "")
        for cell in cells
        if cell.cell_type == "code" and "# your lines here" in cell.source
    }
    assert [text.split(":")[0].split(".")[0] for text in outputs.values()] == [
        "product breaks a contract",
        "norm_linear breaks a contract",
        "merge breaks a contract",
        "layer_kernels breaks a contract",
    ]
    assert "a step is few kernels: 25 for 2 layers" in [*outputs.values()][-1]
