"""What every notebook promises. nbval compares the outputs; this sees that there is something to compare."""

import dis
import re
from functools import cache
from types import CodeType

import nbformat
import pytest
from notebook_files import CORES, DEEPER, NOTEBOOKS, name_of
from skeletons import steps_of

from labkit.ladder import LESSONS, PAGES
from labkit.learn.home import MINUTES
from labkit.paths import ROOT

IGNORED_TAG, IGNORED_LINE = "nbval-ignore-output", "# NBVAL_IGNORE_OUTPUT"
COMPARED = {"text/plain", "text/html", "text/markdown"}
LONGEST_LINE = 100  # characters that are printed; JupyterLab breaks longer lines inside a word
LONGEST_CODE = 111  # of source in a diff, with its sign; a reader sees that as HTML, which is not broken
KEPT_METADATA = {"tags", "jupyter"}  # as the Makefile's masks
SLIDERS = "application/vnd.jupyter.widget-view+json"


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)


@cache
def notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in notebook(path).cells if cell.cell_type == "code"]


def is_ignored(cell) -> bool:
    return IGNORED_TAG in cell.metadata.get("tags", []) or IGNORED_LINE in cell.source.splitlines()


def is_compared(cell) -> bool:
    """Whether nbval compares text of this cell: printed, or displayed with more than a figure's size."""
    if is_ignored(cell):
        return False
    printed = [out for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    displayed = [out for out in cell.outputs if "data" in out and "image/png" not in out.data]
    return bool(printed) or any(COMPARED & out.data.keys() for out in displayed)


def test_the_ladder_and_the_folder_name_the_same_notebooks():
    """The lessons, and the pages before some of them; what goes deeper belongs to one of these."""
    named = [page.notebook for page in (*LESSONS.values(), *PAGES.values())]
    assert [path.name for path in CORES] == named
    assert {path.name for path in DEEPER} <= set(named)


@every_notebook
def test_a_file_that_a_notebook_names_is_there(path):
    """Of the sources: what a reader may want to open."""
    text = "\n".join(cell.source for cell in notebook(path).cells)
    named = re.findall(r"\b(?:tests|labkit|data)/[\w./-]+\.\w+", text)
    assert not [name for name in named if not (ROOT / name).exists()]


@every_notebook
def test_enough_of_a_notebook_is_compared(path):
    first, *cells = code_cells(path)
    assert is_ignored(first)  # it says where it runs, with which versions
    with_output = [cell for cell in cells if cell.outputs]
    assert any(map(is_compared, cells))
    assert sum(map(is_ignored, with_output)) <= 0.5 * len(with_output)


@every_notebook
def test_a_notebook_stores_one_clean_run(path):
    """And nothing that differs from run to run or between machines, which `make notebooks` sees to."""
    assert set(notebook(path).metadata) == {"kernelspec"}
    assert all(set(cell.metadata) <= KEPT_METADATA for cell in notebook(path).cells)
    assert path.stat().st_size < 1_500_000  # small enough to read on the web
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert not [out for out in cell.outputs if out.output_type == "error"], cell.source
        assert not [out for out in cell.outputs if out.get("name") == "stderr"], cell.source


def shown_by(path):
    """All that a notebook's cells display: forms by their type, and their metadata."""
    return [out for cell in code_cells(path) for out in cell.outputs if "data" in out]


@every_notebook
def test_no_printed_line_is_too_long_for_the_screen(path):
    printed = [out.text for cell in code_cells(path) for out in cell.outputs if out.output_type == "stream"]
    plain = [out.data["text/plain"] for out in shown_by(path) if "text/html" not in out.data]
    code = [out.data["text/plain"] for out in shown_by(path) if "text/html" in out.data]
    lines = [line for text in (*printed, *plain) for line in text.splitlines()]
    assert not [line for line in lines if len(line) > LONGEST_LINE]
    assert not [line for text in code for line in text.splitlines() if len(line) > LONGEST_CODE]


@every_notebook
def test_pictures_and_sliders_leave_words_for_whoever_does_not_see_them(path):
    pictures = [out for out in shown_by(path) if "image/png" in out.data]
    said = [out.metadata.get("image/png", {}).get("alt", "") for out in pictures]
    assert all(len(words.split()) > 1 and ".png" not in words for words in said), said
    sliders = [out.data["text/plain"] for out in shown_by(path) if SLIDERS in out.data]
    assert all(words.startswith(("Sliders (", "A chat: ")) for words in sliders)


@every_notebook
def test_large_numbers_in_tables_have_separators(path):
    tables = [out.data["text/html"] for out in shown_by(path) if "<table" in out.data.get("text/html", "")]
    cells = [cell for table in tables for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", table)]
    assert not [cell for cell in cells if re.fullmatch(r"-?\d{4,}(\.\d+)?", cell)]


@every_notebook
def test_a_notebook_begins_with_the_bootstrap_and_installs_nothing(path):
    cells = code_cells(path)
    begins = {page.notebook: f'begin("{number}")' for number, page in PAGES.items()}
    begins |= {lesson.notebook: f'start("{number}")' for number, lesson in LESSONS.items()}
    assert cells[0].source == f"from labkit import lab\n\nhere = lab.{begins[path.name]}"
    for cell in cells:
        first = [line.lstrip()[:1] for line in cell.source.splitlines()]
        assert "%" not in first and "!" not in first, f"a magic or a shell line: {cell.source}"


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell binds, and those that it takes from other cells (or from Python)."""
    code = compile(source, "cell", "exec")
    bound, taken = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in bound:
            taken.add(step.argval)
    return bound, taken | (globals_of_functions(code) - bound)


def globals_of_functions(code: CodeType) -> set[str]:
    names = set()
    for inner in filter(lambda constant: isinstance(constant, CodeType), code.co_consts):
        names |= {step.argval for step in dis.get_instructions(inner) if step.opname == "LOAD_GLOBAL"}
        names |= globals_of_functions(inner)
    return names


@every_notebook
def test_a_name_that_cells_share_means_one_thing(path):
    """Bound in two cells, it would depend on which ran last what a third one shows."""
    cells = [names_of(cell.source) for cell in code_cells(path)]
    bound_twice = {
        name for name in set().union(*(bound for bound, _ in cells)) if sum(name in b for b, _ in cells) > 1
    }
    assert bound_twice & set().union(*(taken for _, taken in cells)) == set()


# --- how long a lesson takes -----------------------------------------------------------------------------
# Its first cell and the home page say the same, and its text, code, outputs and steps come to it. The weights
# are fitted to what readers needed: one for each lesson from 00 on, and a second one for six of them.

SAID = re.compile(r"[Aa]bout (half an hour|an hour|\d+ minutes)")


def minutes_of(path) -> float:
    """A word of text is read in 1/100 minute, a line of code that is not folded in 1/25, a word of output,
    shown source among it, in 1/150; a figure takes a minute, a prediction two, a step with its verdicts six,
    and a line that the reader writes half a minute; a line of a Triton kernel around it a fifth more."""
    cells = notebook(path).cells
    text = " ".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = code_cells(path)
    outputs = [out for cell in code for out in cell.outputs]
    shown = [out.data for out in outputs if "data" in out]
    printed = [out.text for out in outputs if out.output_type == "stream"]
    printed += [
        data.get("text/markdown", data.get("text/plain", "")) for data in shown if "image/png" not in data
    ]
    open_code = [cell.source for cell in code if not cell.metadata.get("jupyter", {}).get("source_hidden")]
    written = [piece for step in steps_of(path) for piece in step.pieces]
    kernels = [step.solved for step in steps_of(path) if "@triton.jit" in step.solved]
    return (
        len(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).split()) / 100
        + len([line for source in open_code for line in source.splitlines() if line.strip()]) / 25
        + sum(len(words.split()) for words in printed) / 150
        + sum("image/png" in data for data in shown)
        + 2 * sum(cell.source.count("guess=None") for cell in code)
        + 6 * len(steps_of(path))
        + sum(len(piece.splitlines()) for piece in written) / 2
        + sum(len(kernel.splitlines()) for kernel in kernels) / 5
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", CORES, ids=name_of)
def test_a_lesson_says_how_long_it_takes(path):
    number = re.match(r"(before_)?\d+", path.name)[0]
    minutes = MINUTES[number]
    (said,) = SAID.findall(notebook(path).cells[0].source)
    assert said == {30: "half an hour", 60: "an hour"}.get(minutes, f"{minutes} minutes")
    off = abs(minutes_of(path) - minutes)
    assert off <= minutes / 6, f"about {minutes_of(path):.0f} minutes"
