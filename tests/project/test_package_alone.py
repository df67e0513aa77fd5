"""The package as a wheel installs it, without the project: it imports, says what it lacks, writes nothing."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

WITHOUT = "labkit was installed without its project: "
NEEDS_THE_PROJECT = """
import labkit
from labkit import lab, results
for call in (
    lambda: lab.start("00"),
    lambda: labkit.load_model("data/tiny-gpt2"),
    lambda: results.load("ladder_036_h100"),
):
    try:
        call()
    except labkit.errors.ProjectError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What setuptools puts into a wheel: Python files, py.typed and JupyterLab's settings."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(ROOT / "labkit", folder / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    yield folder
    assert os.listdir(folder) == ["labkit"]  # whatever was tried


def python(folder, tmp_path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "LABKIT_COMMIT"}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_every_module_imports(installed, tmp_path):
    code = (
        "import importlib.util, pkgutil, labkit\n"
        "for module in pkgutil.walk_packages(labkit.__path__, 'labkit.'):\n"
        "    if module.name != 'labkit.serve.ray_app' or importlib.util.find_spec('ray'):\n"
        "        importlib.import_module(module.name)\n"
        "print(labkit.__file__)"
    )
    answer = python(installed, tmp_path, "-c", code)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(installed / "labkit" / "__init__.py")


def test_what_needs_the_project_says_so_and_how_to_get_it(installed, tmp_path):
    said = python(installed, tmp_path, "-c", NEEDS_THE_PROJECT).stdout.splitlines()
    way_out = "Clone the project with git, and in the clone run `make lab`, or `pip install -e .`"
    assert len(said) == 3
    assert all(line.startswith(f"{WITHOUT}{installed}") and line.endswith(way_out) for line in said)


def test_there_are_no_notebooks_to_open(installed, tmp_path):
    answer = python(installed, tmp_path, "-m", "labkit")
    assert answer.returncode == 1 and answer.stderr.startswith(WITHOUT)
    assert len(answer.stderr.splitlines()) == 1


def test_a_benchmark_asks_where_its_record_may_go(installed, tmp_path):
    answer = python(installed, tmp_path, "-m", "labkit.bench", "host-time", "--device", "cpu")
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert re.search(rf"error: {WITHOUT}.*\. Name a file with --json", line)


def test_a_benchmark_writes_where_it_is_told_to(installed, tmp_path):
    flags = "--device cpu --rungs 00 --batch-sizes 1 --steps 2 --rounds 1 --json here/mine.json"
    answer = python(installed, tmp_path, "-m", "labkit.bench", "host-time", *flags.split())
    assert answer.returncode == 0, answer.stderr
    assert '"commit": "unknown"' in (tmp_path / "here/mine.json").read_text()
    assert os.listdir(tmp_path) == ["here"]
