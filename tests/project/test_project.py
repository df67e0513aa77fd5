"""The project's own files: its layout, what CONTRIBUTING.md names, CI, and the Makefile's flags."""

import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from labkit import __version__
from labkit.paths import ROOT

TOP_LEVEL = """
README.md INSTALL.md REPLICAS.md PARALLEL.md BENCHMARKS.md CONTRIBUTING.md GLOSSARY.md CLASSES.md
RELIABILITY.md CHANGELOG.md LICENSE CITATION.cff Makefile Dockerfile .dockerignore .gitattributes
environment.yml pyproject.toml .binder .ci .github .gitignore .pre-commit-config.yaml notebooks labkit
data docs tests book
"""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_top_level_is_complete_and_nothing_else_is_tracked():
    assert not [name for name in TOP_LEVEL.split() if not (ROOT / name).exists()]
    if shutil.which("git") and (ROOT / ".git").exists():
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert {line.split("/")[0] for line in listing.stdout.splitlines()} <= set(TOP_LEVEL.split())


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # without which it is none
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


def test_what_contributing_names_is_there():
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"`([^`]+)`", contributing))
    paths = [q for q in quoted if re.fullmatch(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(py|md|json|yml|toml)", q)]
    assert len(paths) > 20 and not [path for path in paths if not (ROOT / path).exists()]
    sources = [*ROOT.glob("labkit/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "pyproject.toml"]
    words = set(re.findall(r"\w+", MAKEFILE + "".join(path.read_text(encoding="utf-8") for path in sources)))
    names = {q for q in quoted if re.fullmatch(r"[A-Za-z_]+", q)}
    assert len(names) > 20 and names <= words
    headings = re.findall(r"^#+ (.*)$", contributing, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", contributing)) <= anchors


IN_CI = ["lint", "test", ".venv/.cluster,clients", "-j3 test-browser test-cluster test-clients"]


@pytest.mark.parametrize(("failing", "ran"), [("none", IN_CI), ("lint", IN_CI[:1])])
def test_ci_lints_then_tests_and_passes_failure_on(tmp_path, failing, ran):
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    fake_make = tmp_path / "make"
    fake_make.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/goals\n[ "$*" != "{failing}" ] || exit 2\n')
    fake_make.chmod(0o755)
    answer = subprocess.run([script], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert answer.returncode == (0 if failing == "none" else 2)
    assert [goals.split(" TEST_ARGS")[0] for goals in (tmp_path / "goals").read_text().splitlines()] == ran


def test_the_workflow_runs_ci_on_the_oldest_python_a_newer_one_and_without_triton():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    runs = [(run["os"], run["python"]) for run in job["strategy"]["matrix"]["include"]]
    assert runs == [("ubuntu-latest", "3.11"), ("ubuntu-latest", "3.13"), ("macos-latest", "3.13")]
    assert PROJECT["requires-python"] == ">=3.11"
    assert job["steps"][-1] == {"run": ".ci/run", "env": {"PYTHON": "python"}}
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_the_fast_tests_are_those_that_always_run_but_the_slow_ones():
    (always,) = re.findall(r"-m '([^']+)'", TOOL["pytest"]["ini_options"]["addopts"])
    assert f"pytest -m '{always} and not slow'" in MAKEFILE
    assert "slow" not in always  # `make test` leaves none of them out


# --- the tests mirror the package, folder by folder ------------------------------------------------------

TESTS = ROOT / "tests"
ELSEWHERE = ("bad_input", "browser", "project", "soak", "support")  # about all of it, and what tests share
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))


def test_every_test_file_is_about_a_folder_of_the_package():
    folders = {file.parent for file in FILES if file.parts[0] not in ELSEWHERE}
    assert not [folder for folder in folders if not (ROOT / "labkit" / folder / "__init__.py").is_file()]


def test_what_tests_share_is_in_support_alone():
    """But for the tables of bad input and the soak, which lie beside the tests that use them."""
    for file in (file for file in FILES if file.parts[0] not in ("bad_input", "soak")):
        is_test = file.name.startswith("test_") or file.name == "conftest.py"
        assert is_test != (file.parts[0] == "support"), file
        assert not re.search(
            r"^(from|import) test_", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE
        )
