"""Lesson 00's build steps: each is right with its hints, loops cost operators, and the part can be kept."""

import inspect
import re

import pytest
from skeletons import filled, solved, steps_of

from labkit import lab, paths
from labkit.kernels import paged_attention_plain
from labkit.learn.kept import keep
from labkit.learn.lesson_00 import pieces
from labkit.learn.progress import LessonProgress
from labkit.learn.steps import STEPS
from labkit.paths import ROOT

NOTEBOOK = ROOT / "notebooks/00_paged_engine.ipynb"


@pytest.mark.slow
def test_each_step_is_right_and_the_part_can_be_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    lesson = filled(NOTEBOOK)
    assert all(text.startswith("attention: right.") for text in lesson.printed)
    loops, at_once = (
        int(re.search(r"([\d,]+)$", line)[1].replace(",", "")) for line in lesson.last_lines[-2:]
    )
    assert loops > 4 * at_once
    assert lesson.noted == {"00": LessonProgress(STEPS["00"])}

    here = lab.start("00")
    mine = keep("00", "attention", lesson.names["my_loops"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(attention=part).ok
    assert "def my_gather" in mine.source and "def my_weights" in mine.source


@pytest.mark.slow
def test_the_skeletons_are_refused_by_what_is_missing():
    here, (shell, _) = lab.start("00"), solved(NOTEBOOK)
    for step in steps_of(NOTEBOOK):
        shell.run_cell(step.skeleton).raise_error()
    checked = {
        "my_gather": lambda own: pieces.paged_attention(gather=own),
        "my_weights": lambda own: pieces.paged_attention(weights=own),
        "my_attention": lambda own: own,
    }
    reports = [here.check(attention=make(shell.user_ns[name])).text for name, make in checked.items()]
    assert "from the block that its request's row of the table names" in reports[0]
    assert "all tokens of a text have the same weight" in reports[1]
    assert "a text ends at its context length" in reports[2]


def test_the_hints_are_the_packages_own_lines():
    (gather,), (weights,), _, (visible,) = (step.pieces for step in steps_of(NOTEBOOK))
    assert "cache[row" in gather and "cache[row[" in inspect.getsource(pieces.gather)
    assert weights in inspect.getsource(pieces.weights)
    assert "< context_lens[:, None]" in visible
    assert "< context_lens[:, None]" in inspect.getsource(paged_attention_plain)


@pytest.mark.parametrize("term", ["TTFT", "ITL", "TPOT", "Throughput"])
def test_each_term_that_the_lesson_promises_is_defined_in_its_core(term):
    core, _ = NOTEBOOK.read_text(encoding="utf-8").split("## Deeper", 1)
    assert core.count(f"[**{term}**](../GLOSSARY.md#{term.lower()})") == 1
    assert term.lower() in core.split("**You need**")[0].lower()
