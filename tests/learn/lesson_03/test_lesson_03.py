"""Lesson 03's build steps: the count that says a step is done, and a part that can be kept."""

import inspect

import pytest
from skeletons import filled, steps_of
from triton_marks import needs_triton

from labkit import lab, paths
from labkit.kernels.kv_append import _kv_append_full_batch_kernel
from labkit.learn.kept import keep
from labkit.learn.lesson_03.toy import runs_of
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/03_triton_full_batch.ipynb"


@pytest.mark.slow
@needs_triton
def test_each_step_launches_its_kernels_and_the_part_can_be_kept(monkeypatch, tmp_path):
    lesson = filled(NOTEBOOK)
    count = "kernels launched for the toy's write: "
    programs = "6 programs, grid (3, 2)"
    assert lesson.last_lines[1:] == [f"{count}2 ({programs} and {programs})", f"{count}1 ({programs})"]

    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("03")
    mine = keep("03", "kv_write", lesson.names["MyWrite"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(kv_write=part).ok
    for slots in ((1, 1, 1), (1, 1, 2)):
        assert not [stray for run in runs_of(part, slots) for stray in run.strays()]

    card = here.card(kv_write=lesson.names["MyDispatch"])
    host = ~card.index.str.startswith("GPU")
    assert card.loc[host, "yours"].equals(card.loc[host, "the package's"])


def test_the_hint_of_the_kernel_is_the_packages_but_for_its_third_axis():
    kernel, _ = steps_of(NOTEBOOK)[-1].pieces
    function = getattr(_kv_append_full_batch_kernel, "fn", _kv_append_full_batch_kernel)
    package = inspect.getsource(function).replace("in_head", "d < D")
    for line in (line.strip() for line in kernel.splitlines()):
        if "tl.store" in line or "= tl.load(key" in line or "= tl.load(value" in line:
            assert line in package
