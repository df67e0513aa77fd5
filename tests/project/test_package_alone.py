"""The package as a wheel installs it, without the project and without Triton, in one process that tries it
all: it imports, says what it lacks, writes nothing but what it is told to."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

WITHOUT = "labkit was installed without its project: "
TRIED = """
import sys
sys.modules["triton"] = None
import labkit.show
above = ("labkit.engine", "labkit.watch", "labkit.bench", "labkit.kvcache")
engines = [name for name in sys.modules if name.startswith(above)]  # that drawing needs

import contextlib, importlib, importlib.util, io, json, pkgutil, runpy
from labkit import lab, results
from labkit.kernels.triton_runtime import require_triton

def refusal(call):
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            call()
        except (labkit.errors.LabkitError, SystemExit) as ended:
            return [*printed.getvalue().splitlines(), str(ended)]

def program(name, arguments=""):
    sys.argv = [name, *arguments.split()]
    runpy.run_module(name, run_name="__main__", alter_sys=True)

small = "--device cpu --rungs 00 --batch-sizes 1 --steps 2 --rounds 1 --json here/mine.json"
tried = {
    "labkit": labkit.__file__,
    "engines": engines,
    "Triton": refusal(require_triton),
    "a lesson": refusal(lambda: lab.start("00")),
    "a model": refusal(lambda: labkit.load_model("data/tiny-gpt2")),
    "a record": refusal(lambda: results.load("ladder_036_h100")),
    "notebooks": refusal(lambda: program("labkit")),
    "a benchmark": refusal(lambda: program("labkit.bench", "host-time --device cpu")),
    "a target": refusal(lambda: program("labkit.bench", f"host-time {small}")),
}
for module in pkgutil.walk_packages(labkit.__path__, "labkit."):
    if module.name != "labkit.serve.ray_app" or importlib.util.find_spec("ray"):
        importlib.import_module(module.name)
print(json.dumps({**tried, "imported": [name for name in sys.modules if name.startswith("labkit.")]}))
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> dict:
    """What came of all that was tried, with what setuptools puts into a wheel: Python files, py.typed and
    JupyterLab's settings."""
    installed, here = map(tmp_path_factory.mktemp, ("site-packages", "here"))
    shutil.copytree(ROOT / "labkit", installed / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if name != "LABKIT_COMMIT"}
    environment |= {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", TRIED]
    answer = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert os.listdir(installed) == ["labkit"]
    return {"installed": installed, "here": here} | json.loads(answer.stdout.splitlines()[-1])


def test_every_module_imports(tried):
    assert tried["labkit"] == str(tried["installed"] / "labkit" / "__init__.py")
    assert {"labkit.engine", "labkit.kernels.triton_runtime", "labkit.doctor"} <= set(tried["imported"])


def test_drawing_needs_no_engine(tried):
    """Not by way of another module either: what is drawn was recorded, or read from a file."""
    assert tried["engines"] == []


def test_what_needs_triton_says_so(tried):
    (said,) = tried["Triton"]
    assert said.startswith("Triton is not installed. The plain PyTorch path needs no Triton")
    assert "labkit.doctor" in said


def test_what_needs_the_project_says_so_and_how_to_get_it(tried):
    way_out = "Clone the project with git, and in the clone run `make lab`, or `pip install -e .`"
    for what in ("a lesson", "a model", "a record", "notebooks"):
        (said,) = tried[what]
        assert said.startswith(f"{WITHOUT}{tried['installed']}") and said.endswith(way_out)


def test_a_benchmark_asks_where_its_record_may_go_and_writes_where_it_is_told_to(tried):
    line, status = tried["a benchmark"]
    assert re.search(rf"error: {WITHOUT}.*\. Name a file with --json", line) and status == "2"
    assert '"commit": "unknown"' in (tried["here"] / "here/mine.json").read_text()
    assert os.listdir(tried["here"]) == ["here"]
