"""How long a lesson takes: its first cell and the home page say the same, and its text, code, outputs and
steps come to it. The weights are fitted to what readers needed: one for each lesson from 00 on, and a second
one for six of them."""

import re

import nbformat
import pytest
from notebook_files import CORES, name_of
from skeletons import steps_of

from labkit.learn.home import MINUTES

SAID = re.compile(r"[Aa]bout (half an hour|an hour|\d+ minutes)")


def minutes_of(path) -> float:
    """A word of text is read in 1/100 minute, a line of code that is not folded in 1/25, a word of output,
    shown source among it, in 1/150; a figure takes a minute, a prediction two, a step with its verdicts six,
    and a line that the reader writes half a minute; a line of a Triton kernel around it a fifth more."""
    cells = nbformat.read(path, as_version=4).cells
    text = " ".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = [cell for cell in cells if cell.cell_type == "code"]
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
    (said,) = SAID.findall(nbformat.read(path, as_version=4).cells[0].source)
    assert said == {30: "half an hour", 60: "an hour"}.get(minutes, f"{minutes} minutes")
    off = abs(minutes_of(path) - minutes)
    assert off <= minutes / 6, f"about {minutes_of(path):.0f} minutes"
