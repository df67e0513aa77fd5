"""Links: each page leads to its neighbours, a link to a file of the project finds it, and each term of the
glossary has the notebook that introduces it."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from notebook_files import DEEPER, FOLDER, HOME, NOTEBOOKS, name_of

from labkit.ladder import LESSONS, PAGES, all_pages
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


# --- the glossary ---------------------------------------------------------------------------------------

GLOSSARY = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+)\n\n((?:(?!^#).*\n)+)", GLOSSARY, re.MULTILINE))
TERMS = re.findall(r"^#{2,} (.+)$", GLOSSARY, re.MULTILINE)
MOST_WORDS = 60  # of a definition: one to three plain sentences


def anchor(heading: str) -> str:
    """What follows the # in a link to a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


ANCHORS = {anchor(term) for term in TERMS}


def test_terms_are_in_alphabetical_order_and_each_is_there_once():
    assert list(ENTRIES) == TERMS and len(TERMS) > 100
    assert all(before.casefold() < after.casefold() for before, after in pairwise(TERMS))
    assert len(ANCHORS) == len(TERMS)


def test_a_term_is_explained_shortly():
    definitions = [entry.split("\n\n")[0] for entry in ENTRIES.values()]
    assert not [d for d in definitions if len(d.split()) > MOST_WORDS or not d.endswith((".", ")"))]


def glossary_links(path: Path) -> list[tuple[str, str]]:
    """Each link of a page to the glossary, as (file, term)."""
    parts = [link.partition("#") for link in links_of(path)]
    return [(file, term) for file, _, term in parts if file.endswith("GLOSSARY.md")]


def test_a_term_is_introduced_by_the_first_notebook_that_links_to_it():
    first: dict[str, str] = {}
    pages = [folder / page.notebook for page in all_pages() for folder in (FOLDER, FOLDER / "deeper")]
    for path in filter(Path.exists, pages):
        for _, term in filter(lambda link: link[1], glossary_links(path)):
            first.setdefault(term, f"notebooks/{name_of(path)}.ipynb")
    introduced = {term: re.search(r"Introduced in \[.+?\]\((.+?)\)", ENTRIES[term])[1] for term in TERMS}
    assert {anchor(term): notebook for term, notebook in introduced.items()} == first


def test_terms_link_to_terms():
    assert set(re.findall(r"\]\(#([^)]+)\)", GLOSSARY)) <= ANCHORS


def test_a_link_to_the_glossary_finds_its_term():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *NOTEBOOKS):
        links = glossary_links(path)
        assert {term for _, term in links if term} <= ANCHORS, path
        assert all((path.parent / file).resolve() == ROOT / "GLOSSARY.md" for file, _ in links), path
