"""Lesson 04's build steps: the counts that say a step is done, a part that can be kept; and its command."""

import inspect
import shlex

import nbformat
import pytest
from skeletons import filled, steps_of
from triton_marks import needs_triton

from labkit import lab, paths, results
from labkit.bench.__main__ import make_parser
from labkit.kernels.kv_append import _kv_append_identity_pos_kernel
from labkit.learn.kept import keep
from labkit.learn.lesson_03.toy import runs_of
from labkit.learn.lesson_04.counts import index_tensors_of
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/04_identity_pos.ipynb"


@pytest.mark.slow
@needs_triton
def test_each_step_reaches_its_count_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    assert lesson.last_lines == [
        "index tensors in a step: 15",
        "kernels launched for the toy's write: 1 (6 programs, grid (3, 2))",
        "index tensors in a step: 4",
    ]

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("04")
    mine = keep("04", "kv_write", lesson.names["MyWrite"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(kv_write=part).ok
    assert index_tensors_of(here.build(kv_write=part)) == lesson.last_lines[-1]
    (run,) = runs_of(part, (1, 3, 2))
    assert run.strays() == []

    card = here.card(lengths=(20, 23), kv_write=lesson.names["MyRule"])
    assert card["yours"].equals(card["the package's"])
    assert not card["yours"].equals(card["the rung below"])


def test_the_hint_of_the_kernel_is_the_packages_but_for_its_third_axis():
    kernel, _ = steps_of(NOTEBOOK)[1].pieces
    function = getattr(_kv_append_identity_pos_kernel, "fn", _kv_append_identity_pos_kernel)
    package = (
        inspect.getsource(function).replace("block_idx_ptr", "blocks_ptr").replace("cache_stride", "stride")
    )
    assert "    block = tl.load(blocks_ptr + b).to(tl.int64)" in kernel.splitlines()
    assert "    block = tl.load(blocks_ptr + b).to(tl.int64)" in package.splitlines()
    assert "block * stride_n + h * stride_h" in kernel and "block * stride_n + h * stride_h" in package


def parsed(command):
    """The settings of a benchmark's command line, without the rung, which write-ups do not have."""
    said = vars(make_parser().parse_args(shlex.split(command)))
    return {name: value for name, value in said.items() if name not in ("run", "rung")}


def test_the_command_of_the_lesson_is_the_write_ups_with_another_model():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown").replace("\\\n", " ")
    (command,) = [line for line in text.splitlines() if "python -m labkit.bench" in line]
    published = parsed(results.headline("04")["command"])
    assert parsed(command.split("labkit.bench ")[1]) == published | {"model": "random:gpt2"}
    assert published["prompt_repeats"] == (1, 4) and published["repeat_runs"] == 3
