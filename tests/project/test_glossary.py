"""The glossary: in order, each term with the notebook that introduces it, and no link to a missing term."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
from notebook_files import FOLDER, NOTEBOOKS, name_of

from labkit.ladder import all_pages
from labkit.paths import ROOT

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


def links_of(path):
    """Each link of a page to the glossary, as (file, term)."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
    return re.findall(r"\]\(([^)]*GLOSSARY\.md)(?:#([^)]*))?\)", text)


def test_a_term_is_introduced_by_the_first_notebook_that_links_to_it():
    first: dict[str, str] = {}
    pages = [folder / page.notebook for page in all_pages() for folder in (FOLDER, FOLDER / "deeper")]
    for path in filter(Path.exists, pages):
        for _, term in filter(lambda link: link[1], links_of(path)):
            first.setdefault(term, f"notebooks/{name_of(path)}.ipynb")
    introduced = {term: re.search(r"Introduced in \[.+?\]\((.+?)\)", ENTRIES[term])[1] for term in TERMS}
    assert {anchor(term): notebook for term, notebook in introduced.items()} == first


def test_terms_link_to_terms():
    assert set(re.findall(r"\]\(#([^)]+)\)", GLOSSARY)) <= ANCHORS


def test_a_link_to_the_glossary_finds_its_term():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *NOTEBOOKS):
        links = links_of(path)
        assert {term for _, term in links if term} <= ANCHORS, path
        assert all((path.parent / file).resolve() == ROOT / "GLOSSARY.md" for file, _ in links), path
