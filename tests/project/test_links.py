"""Links: each page leads to its neighbours, and a link to a file of the project finds it."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from notebook_files import DEEPER, FOLDER, HOME, NOTEBOOKS, name_of

from labkit.ladder import LESSONS, PAGES
from labkit.paths import ROOT

OTHERS = (ROOT / "data/tiny-gpt2/README.md", *ROOT.glob("docs/*.md"))
TEXTS = sorted([*ROOT.glob("*.md"), HOME, *NOTEBOOKS, *OTHERS])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links_of(path: Path) -> list[str]:
    """Where the links of a text, or of a notebook's Markdown, lead to."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return LINK.findall(text)


def files_of(path: Path) -> list[Path]:
    """The files of the project that a text links to."""
    links = [link.split("#")[0] for link in links_of(path) if not re.match("https?://|mailto:", link)]
    return [(path.parent / link).resolve() for link in links if link]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_linked_file_is_there(path):
    assert [file for file in files_of(path) if not (file.exists() and file.is_relative_to(ROOT))] == []


def test_neighbouring_lessons_link_to_each_other_and_a_page_to_its_lesson():
    linked = [(before, after) for a, b in pairwise(LESSONS.values()) for before, after in ((a, b), (b, a))]
    linked += [(page, LESSONS[page.number.removeprefix("before_")]) for page in PAGES.values()]
    for page, other in linked:
        assert FOLDER / other.notebook in files_of(FOLDER / page.notebook)


@pytest.mark.parametrize("path", DEEPER, ids=name_of)
def test_a_lesson_and_what_goes_deeper_link_to_each_other(path):
    lesson = FOLDER / path.name
    assert path in files_of(lesson) and lesson in files_of(path)


def test_the_readme_leads_to_every_page():
    named = {FOLDER / page.notebook for page in (*PAGES.values(), *LESSONS.values())}
    assert named <= set(files_of(ROOT / "README.md"))
