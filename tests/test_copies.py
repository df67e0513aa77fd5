"""The reader's own copies: made once, renewed while nobody has written in them, and then left alone."""

import json
import os
import subprocess
import sys

import nbformat
import pytest
from nbformat import v4
from notebook_files import FOLDER, HOME, NOTEBOOKS

from labkit import copies, paths
from labkit.copies import make_copies, told
from labkit.paths import ROOT

LESSON = "01_lesson.ipynb"


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A project of one notebook."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "MINE", tmp_path / "notebooks/mine")
    (tmp_path / "notebooks/deeper").mkdir(parents=True)
    write(tmp_path / "notebooks" / LESSON, "print(1)")
    return tmp_path


def write(path, code, text="Every term is in the [glossary](../GLOSSARY.md#host), see [02](02_b.ipynb)."):
    cells = [v4.new_markdown_cell(text, id="a"), v4.new_code_cell(code, id="b", execution_count=1)]
    nbformat.write(v4.new_notebook(cells=cells), path)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def edit(path, change):
    notebook = read(path)
    change(notebook)
    path.write_text(json.dumps(notebook))


def run_and_save(notebook):
    """What JupyterLab leaves of a run: outputs and metadata."""
    output = {"output_type": "stream", "name": "stdout", "text": ["1"]}
    notebook["cells"][1] |= {"execution_count": 7, "outputs": [output], "metadata": {"execution": {}}}
    notebook["metadata"]["language_info"] = {"name": "python"}


def write_in_it(notebook):
    notebook["cells"][1]["source"] = ["print(2)\n", "print(3)"]


def test_a_copy_is_the_notebook_and_its_links_lead_to_the_same_files(project):
    assert make_copies() == []
    copy = read(paths.MINE / LESSON)
    assert copy["cells"][0]["source"] == [
        "Every term is in the [glossary](../../GLOSSARY.md#host), see [02](02_b.ipynb)."
    ]
    original = read(project / "notebooks" / LESSON)
    assert copy["cells"][1:] == original["cells"][1:]
    assert {path.name for path in paths.MINE.iterdir()} == {LESSON, "deeper"}


def test_a_copy_of_what_goes_deeper_leads_to_the_readers_own_lesson(project):
    path = f"deeper/{LESSON}"
    write(project / "notebooks" / path, "1", text=f"[back](../{LESSON}), [host](../../GLOSSARY.md#host)")
    assert make_copies() == []
    text = read(paths.MINE / path)["cells"][0]["source"]
    assert text == [f"[back](../{LESSON}), [host](../../../GLOSSARY.md#host)"]
    edit(paths.MINE / path, write_in_it)
    write(project / "notebooks" / path, "2")
    assert make_copies() == [path]


@pytest.mark.parametrize(("code", "is_copied"), [("print(1)", True), ("print(gain.score(3.2))", False)])
def test_stored_outputs_are_copied_but_for_the_answer_to_a_prediction(project, code, is_copied):
    original = project / "notebooks" / LESSON
    write(original, code)
    edit(original, run_and_save)
    make_copies()
    (cell,) = read(paths.MINE / LESSON)["cells"][1:]
    assert (bool(cell["outputs"]), cell["execution_count"]) == ((True, 7) if is_copied else (False, None))
    assert read(original)["cells"][1]["outputs"]


def test_what_the_reader_did_stays_while_the_notebook_does(project):
    make_copies()
    edit(project / "notebooks" / LESSON, run_and_save)  # which is no news
    for change in (run_and_save, write_in_it):
        edit(paths.MINE / LESSON, change)
        before = (paths.MINE / LESSON).read_bytes()
        assert make_copies() == []
        assert (paths.MINE / LESSON).read_bytes() == before


def test_a_changed_notebook_is_copied_again_unless_the_reader_has_written_in_the_copy(project):
    copy, original = paths.MINE / LESSON, project / "notebooks" / LESSON
    make_copies()
    edit(copy, run_and_save)
    write(original, "print('new')")
    assert make_copies() == []
    assert read(copy)["cells"][1]["source"] == ["print('new')"]

    edit(copy, write_in_it)
    write(original, "print('newer')")
    before = copy.read_bytes()
    assert make_copies() == [LESSON] and told([LESSON]).startswith(f"{LESSON} is newer now.")
    assert copy.read_bytes() == before
    copy.rename(paths.MINE / "my 01.ipynb")
    assert make_copies() == []
    assert read(copy)["cells"][1]["source"] == ["print('newer')"]


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 5, "metadata": {}}'])
def test_a_file_that_is_no_notebook_is_left_alone(project, text):
    paths.MINE.mkdir()
    (paths.MINE / LESSON).write_text(text)
    assert make_copies() == [LESSON]
    assert (paths.MINE / LESSON).read_text() == text


@pytest.mark.slow
def test_the_command_copies_every_notebook(tmp_path):
    environment = os.environ | {"LABKIT_MINE": str(tmp_path / "mine")}
    command = [sys.executable, "-m", copies.__name__]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == f"Your notebooks are in {tmp_path / 'mine'}\n"
    made = sorted((tmp_path / "mine").rglob("*.ipynb"))
    assert {path.relative_to(tmp_path / "mine") for path in made} == {
        p.relative_to(FOLDER) for p in (HOME, *NOTEBOOKS)
    }
    links = "".join(path.read_text(encoding="utf-8") for path in made if path.parent.name == "mine")
    assert "](../../GLOSSARY.md" in links and "](../GLOSSARY.md" not in links
