"""Where the project is installed otherwise than by `make`: with conda, and on Binder."""

import re
import tomllib

import pytest
import yaml

from labkit.paths import ROOT

CONDA, BINDER = "environment.yml", ".binder/environment.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(TORCH,) = [requirement for requirement in PROJECT["dependencies"] if requirement.startswith("torch>")]


def dependencies(name: str) -> tuple[list[str], list[str]]:
    """What an environment takes from conda, and what pip installs into it."""
    listed = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["dependencies"]
    (from_pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    return [entry for entry in listed if isinstance(entry, str)], from_pip


@pytest.mark.parametrize("name", [CONDA, BINDER])
def test_an_environment_leaves_python_and_pip_to_conda_and_binder_pytorch_too(name):
    """In the form that repo2docker reads: with another it begins with a Python that is too old."""
    (python, pip, *torch), _ = dependencies(name)
    assert torch == ([] if name == CONDA else [TORCH.replace("torch", "pytorch-cpu")])
    assert re.fullmatch(r"python=3\.1[1-9]", python) and pip == "pip"


def test_pip_installs_what_pyproject_asks_for():
    assert dependencies(CONDA)[1] == ["-e .[test]"]


def test_binder_installs_the_lessons_for_a_machine_without_a_gpu():
    """The path begins at the file's folder, and with a dot: so repo2docker copies all files first."""
    (labkit,) = dependencies(BINDER)[1]
    assert labkit == "-e .." and (ROOT / BINDER).parent.parent == ROOT


def test_conda_and_binder_have_one_python():
    assert dependencies(CONDA)[0][0] == dependencies(BINDER)[0][0]
