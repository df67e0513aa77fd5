"""The site of `make book`: which pages, in which order, from stored outputs, and who publishes it."""

import re

import pytest
import yaml
from packaging.requirements import Requirement

from labkit.ladder import all_pages
from labkit.paths import ROOT


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


CONTENTS, CONFIG = read_yaml("book/_toc.yml"), read_yaml("book/_config.yml")
FILES = [CONTENTS["root"], *(chapter["file"] for chapter in CONTENTS["chapters"])]


def test_the_book_has_the_readme_every_page_in_order_and_the_other_texts():
    notebooks = [f"notebooks/{page.notebook.removesuffix('.ipynb')}" for page in all_pages()]
    texts = {path.stem for path in ROOT.glob("*.md")}
    assert FILES[: 1 + len(notebooks)] == ["README", *notebooks]
    assert set(FILES) == {*notebooks, *texts, "data/tiny-gpt2/README"}


@pytest.mark.parametrize("file", FILES)
def test_a_page_of_the_book_is_there(file):
    assert any((ROOT / f"{file}{suffix}").is_file() for suffix in (".md", ".ipynb"))


def test_the_book_executes_nothing_and_reads_only_what_it_lists():
    assert CONFIG["execute"] == {"execute_notebooks": "off"}
    assert CONFIG["only_build_toc_files"] is True


def test_the_books_builder_has_bounds():
    (requirement,) = (ROOT / "book/requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {bound.operator for bound in Requirement(requirement).specifier} == {">=", "<"}


def test_the_workflow_publishes_what_make_builds():
    workflow = read_yaml(".github/workflows/book.yml")
    assert workflow["permissions"]["pages"] == "write"
    (job,) = workflow["jobs"].values()
    make, upload, _ = job["steps"][2:]
    assert make == {"run": "make book PYTHON=python"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (help_text,) = re.findall(r"^book: .*## (.*)$", makefile, re.MULTILINE)
    assert help_text.endswith(f"in {upload['with']['path']}")
    assert "book/_build/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
