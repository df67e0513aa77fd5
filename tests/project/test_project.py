"""The project's own files: layout, Makefile, CI, stored notebooks."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from labkit import __version__
from labkit.paths import ROOT

TOP_LEVEL = {
    *("README.md", "INSTALL.md", "BENCHMARKS.md", "CONTRIBUTING.md", "GLOSSARY.md", "CLASSES.md"),
    *("RELIABILITY.md", "CHANGELOG.md"),
    *("LICENSE", "CITATION.cff", "Makefile", "Dockerfile", ".dockerignore", ".gitattributes"),
    *(
        "environment.yml",
        "pyproject.toml",
        ".binder",
        ".ci",
        ".github",
        ".gitignore",
        ".pre-commit-config.yaml",
    ),
    *("notebooks", "labkit", "data", "tests", "book"),
}
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_nothing_else_is_tracked_at_the_top_level():
    try:
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    assert {line.split("/")[0] for line in listing.stdout.splitlines()} <= TOP_LEVEL


@pytest.mark.parametrize("name", sorted(TOP_LEVEL - {"notebooks"}))
def test_the_top_level_is_complete(name):
    assert (ROOT / name).exists()


def test_license():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n\nCopyright (c) 2026 labkit contributors\n")
    assert "\nText, figures and recorded results of this project are under the same license.\n" in text
    assert PROJECT["license"] == "MIT"


def test_the_citation_is_of_this_version():
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message"} <= set(citation)  # without which it is none
    assert (
        citation["title"]
        == f"{PROJECT['name']}: {PROJECT['description'][0].lower()}{PROJECT['description'][1:]}"
    )
    assert citation["authors"] == [{"name": "labkit contributors"}]
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


def test_an_installed_package_says_that_it_is_typed():
    assert (ROOT / "labkit/py.typed").read_bytes() == b""
    data = ["py.typed", "jupyter/**/*.json", "kernels/shipped_tiles/*.json"]
    assert TOOL["setuptools"]["package-data"] == {"labkit": data}


# --- CONTRIBUTING.md -----------------------------------------------------------------------------------

QUOTED = sorted(set(re.findall(r"`([^`]+)`", CONTRIBUTING)))
PATHS = [
    quoted for quoted in QUOTED if re.fullmatch(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(py|md|json|yml|toml)", quoted)
]
NAMES = [quoted for quoted in QUOTED if re.fullmatch(r"[A-Za-z_]+", quoted)]


@pytest.mark.parametrize("path", PATHS)
def test_what_contributing_names_is_there(path):
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


def test_paths_and_names_are_found_in_contributing():
    assert {".ci/run", "README.md", "labkit/show/", "labkit/engine/scheduler.py"} <= set(PATHS)
    assert {"CHOICES", "slow", "draw_and_advance"} <= set(NAMES) and "make test" not in PATHS + NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_contributing_quotes_is_in_the_sources(name):
    sources = [
        *ROOT.glob("labkit/**/*.py"),
        *ROOT.glob("tests/**/*.py"),
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
    ]
    assert any(re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")) for source in sources)


@needs_make
def test_every_goal_that_contributing_names_is_one(tmp_path):
    listed = {line.split()[0] for line in make(tmp_path).stdout.splitlines()}
    assert {quoted.split()[1] for quoted in QUOTED if quoted.startswith("make ")} <= listed


@pytest.mark.parametrize("anchor", sorted(set(re.findall(r"\]\(#([\w-]+)\)", CONTRIBUTING))))
def test_contributing_links_to_headings_of_its_own(anchor):
    headings = re.findall(r"^#+ (.*)$", CONTRIBUTING, re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


# --- the Makefile --------------------------------------------------------------------------------------

# A stand-in for Python: `-c` answers the version check, `-m venv` installs the stand-in itself, and every
# call is written down.
FAKE_PYTHON = """#!/bin/sh
echo "$*" >> calls
case "$1 $2" in
  "-c "*) exit {version_check} ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") exit {pip} ;;
esac
"""


def make(directory: Path, *goals: str, version_check: int = 0, pip: int = 0) -> subprocess.CompletedProcess:
    """Run the project's Makefile in `directory` with the stand-in; the two numbers are its exit statuses."""
    for name in ("Makefile", "pyproject.toml"):
        if not (directory / name).exists():
            shutil.copy(ROOT / name, directory)
    for python in {directory / "fake-python", *directory.glob(".venv/**/bin/python")}:
        python.write_text(FAKE_PYTHON.format(version_check=version_check, pip=pip))
        python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "PYTHON=./fake-python", *goals]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def calls(directory: Path) -> list[str]:
    """The calls of the stand-in since the last time, without the version check."""
    lines = (directory / "calls").read_text().splitlines()
    (directory / "calls").unlink()
    return [line for line in lines if not line.startswith("-c ")]


INSTALL = ["-m venv .venv", "-m pip install --disable-pip-version-check -e .[test]"]


@needs_make
def test_make_alone_lists_every_goal(tmp_path):
    listed = {line.split()[0] for line in make(tmp_path).stdout.splitlines()}
    tests = {"test", "test-fast", "test-gpu", "test-browser"}
    assert listed == tests | {"help", "lab", "notebooks", "book", "lint", "doctor", "clean"}


@needs_make
@pytest.mark.parametrize("goal", ["lab", "test", "test-fast", "test-gpu", "notebooks", "lint", "doctor"])
def test_each_goal_installs_first_and_only_once(tmp_path, goal):
    assert make(tmp_path, goal).returncode == 0
    first = calls(tmp_path)
    assert first[:2] == INSTALL
    assert make(tmp_path, goal).returncode == 0
    assert calls(tmp_path) == first[2:]


@needs_make
def test_cpu_1_takes_the_cpu_build_of_pytorch(tmp_path):
    assert make(tmp_path, "lab", "CPU=1").returncode == 0
    _, install, _ = calls(tmp_path)
    option = " --extra-index-url https://download.pytorch.org/whl/cpu -e "
    assert install == INSTALL[1].replace(" -e ", option)


@needs_make
def test_a_changed_pyproject_is_installed_again(tmp_path):
    make(tmp_path, "doctor")
    calls(tmp_path)
    later = (tmp_path / ".venv/.ready").stat().st_mtime + 10
    os.utime(tmp_path / "pyproject.toml", (later, later))
    make(tmp_path, "doctor")
    assert calls(tmp_path) == [*INSTALL, "-m labkit.doctor"]


@needs_make
def test_an_installation_that_failed_is_taken_up_again(tmp_path):
    assert make(tmp_path, "doctor", pip=1).returncode != 0
    assert calls(tmp_path) == INSTALL
    assert make(tmp_path, "doctor").returncode == 0
    assert calls(tmp_path) == [*INSTALL, "-m labkit.doctor"]


@needs_make
def test_an_old_python_is_refused_with_a_way_out(tmp_path):
    answer = make(tmp_path, "lab", version_check=1)
    assert answer.returncode != 0
    assert "Python 3.11 or newer" in answer.stderr
    assert "make lab PYTHON=python3.12" in answer.stderr
    assert not (tmp_path / ".venv").exists()


@needs_make
def test_notebooks_are_tested_strictly_on_one_thread_of_the_cpu(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_a", "01_b"):
        (tmp_path / f"notebooks/{name}.ipynb").touch()
    recipe = make(tmp_path, "test", "--dry-run").stdout.replace("\\\n", "").splitlines()[-1]
    assert " ".join(recipe.split()) == (
        ".venv/bin/python -m pytest tests notebooks/00_a.ipynb notebooks/01_b.ipynb "
        "-n 2 --dist loadfile --no-loadscope-reorder --nbval "
        "--nbval-current-env --nbval-cell-timeout=1800 --nbval-kernel-startup-timeout=600"
    )
    # Replacing the stand-in's body shows the environment that a recipe really gets.
    make(tmp_path, "doctor")
    seen = "[${CUDA_VISIBLE_DEVICES-unset}] [${OMP_NUM_THREADS-unset}]"
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\necho "seen: {seen}"\n')

    def environment_in(goal: str, **own: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "CUDA_", "OMP_"))}
        command = {"cwd": tmp_path, "env": environment | own, "capture_output": True, "text": True}
        return subprocess.run(["make", goal], **command).stdout.splitlines()[-1]

    for goal in ("test", "test-fast", "notebooks"):
        assert environment_in(goal) == "seen: [] [1]"
        assert environment_in(goal, OMP_NUM_THREADS="3") == "seen: [] [3]"
    assert environment_in("test-gpu") == "seen: [unset] [unset]"


@needs_make
def test_the_fast_tests_are_those_that_always_run_but_the_slow_ones(tmp_path):
    recipe = make(tmp_path, "test-fast", "--dry-run").stdout.splitlines()[-1].strip()
    (always,) = re.findall(r"-m '([^']+)'", TOOL["pytest"]["ini_options"]["addopts"])
    assert recipe == f".venv/bin/python -m pytest -m '{always} and not slow'"
    assert "slow" not in always  # `make test` leaves none of them out


@needs_make
def test_clean_leaves_the_sources(tmp_path):
    make(tmp_path, "doctor")
    for made in ("labkit/__pycache__", "labkit.egg-info", "notebooks/.ipynb_checkpoints", ".ruff_cache"):
        (tmp_path / made).mkdir(parents=True)
    (tmp_path / "labkit/options.py").touch()
    assert make(tmp_path, "clean").returncode == 0
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    made_here = {"fake-python", "calls", "Makefile", "pyproject.toml"}
    assert left - made_here == {"labkit", "labkit/options.py", "notebooks"}


# --- CI and hooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "ran", "status"),
    [
        ("none", "lint test test-browser", 0),
        ("lint", "lint", 2),
        ("test", "lint test", 2),
        ("test-browser", "lint test test-browser", 2),
    ],
)
def test_ci_lints_then_tests_and_passes_failure_on(tmp_path, failing, ran, status):
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    fake_make = tmp_path / "make"
    fake_make.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/goals\n[ "$1" != {failing} ] || exit 2\n')
    fake_make.chmod(0o755)
    answer = subprocess.run([script], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert answer.returncode == status
    assert (tmp_path / "goals").read_text().split() == ran.split()


def test_the_workflow_runs_ci_on_the_oldest_python_a_newer_one_and_without_triton():
    workflow = read_yaml(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    runs = [(run["os"], run["python"]) for run in job["strategy"]["matrix"]["include"]]
    assert runs == [("ubuntu-latest", "3.11"), ("ubuntu-latest", "3.13"), ("macos-latest", "3.13")]
    assert PROJECT["requires-python"] == ">=3.11"
    assert job["runs-on"] == "${{ matrix.os }}"
    checkout, python, run = job["steps"]
    assert checkout["uses"].startswith("actions/checkout@")
    assert python["uses"].startswith("actions/setup-python@")
    assert python["with"] == {"python-version": "${{ matrix.python }}"}
    assert run == {"run": ".ci/run", "env": {"PYTHON": "python"}}
    assert os.access(ROOT / run["run"], os.X_OK)


def test_types_are_checked_in_the_lower_half_of_the_package():
    files = TOOL["mypy"]["files"]
    assert {"labkit/model", "labkit/kvcache"} <= set(files) and all((ROOT / file).exists() for file in files)
    assert TOOL["mypy"]["disallow_untyped_defs"] and TOOL["mypy"]["check_untyped_defs"]


# --- stored notebooks ----------------------------------------------------------------------------------


KEPT_METADATA = {"tags", "jupyter", "jp-MarkdownHeadingCollapsed"}  # as the Makefile's masks


def test_make_notebooks_keeps_the_metadata_that_a_stored_notebook_may_have():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"preserve_cell_metadata_mask=(\S+)", makefile)) == KEPT_METADATA


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_changes_only_when_its_cells_do(path):
    """What differs from run to run or between machines is not stored: `make notebooks` sees to it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert set(cell["metadata"]) <= KEPT_METADATA, f"cell {cell['id']}"
