"""What a part of the package may know of another, read from its sources."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.paths import ROOT

# All but the model's own files, and the lessons, which teach on GPT-2.
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "labkit").rglob("*.py")
    if not path.relative_to(ROOT).as_posix().startswith(("labkit/model/", "labkit/learn/"))
)

# GPT-2 by its types, by the names of its weights, and by its own names for its sizes.
GPT2_NAME = re.compile(r"(?i:gpt2\w*)|wte|wpe|ln_[12f]|c_(attn|proj|fc)|n_(embd|head|layer|positions|inner)")


def identifiers(tree: ast.AST) -> set[str]:
    """Every name that code goes by: variables, attributes, arguments, keywords, imports, definitions."""
    names = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                names |= set(value.split("."))
    return names


def gpt2_names(source: str) -> set[str]:
    return {name for name in identifiers(ast.parse(source)) if GPT2_NAME.fullmatch(name)}


def test_names_of_gpt2_are_found_wherever_code_can_have_them():
    found = gpt2_names(
        "from labkit.model.gpt2 import GPT2Config as Config\n"
        "def f(wte, *, head=1): return model.h[0].ln_1(wte)\n"
        "f(c_fc=2, n=config.n_embd); gpt2_model = load('random:gpt2')  # wpe\n"
    )
    assert found == {"gpt2", "GPT2Config", "wte", "ln_1", "c_fc", "n_embd", "gpt2_model"}


def test_the_engine_and_the_kernels_are_among_the_sources():
    assert {"labkit/engine/engine.py", "labkit/kernels/decode_ends.py", "labkit/bench/limit.py"} <= set(
        SOURCES
    )


@pytest.mark.parametrize("path", SOURCES)
def test_only_the_model_and_the_lessons_know_gpt2(path):
    assert gpt2_names(Path(ROOT / path).read_text(encoding="utf-8")) == set()


@pytest.mark.slow
def test_drawing_needs_no_engine():
    """Not by way of another module either: what is drawn was recorded, or read from a file."""
    code = (
        "import sys, labkit.show\n"
        "above = ('labkit.engine', 'labkit.watch', 'labkit.bench')\n"
        "engines = [m for m in sys.modules if m.startswith(above)]\n"
        "assert not engines, engines"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
