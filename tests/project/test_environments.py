"""Where the project is installed or shown otherwise than by `make`: conda, Binder, a class, the book."""

import json
import re
import shlex
import tomllib

import yaml
from notebook_files import FOLDER, name_of

from labkit.ladder import all_pages
from labkit.paths import ROOT


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


PROJECT = tomllib.loads(read("pyproject.toml"))["project"]


def dependencies(name: str) -> tuple[list[str], list[str]]:
    """What an environment takes from conda, and what pip installs into it."""
    listed = yaml.safe_load(read(name))["dependencies"]
    (from_pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    return [entry for entry in listed if isinstance(entry, str)], from_pip


def test_conda_and_binder_have_one_python_and_install_the_project():
    """In the form that repo2docker reads: a path that begins with a dot, at the file's folder."""
    (torch,) = [requirement for requirement in PROJECT["dependencies"] if requirement.startswith("torch>")]
    (python, *rest), conda_pip = dependencies("environment.yml")
    assert re.fullmatch(r"python=3\.1[1-9]", python) and (rest, conda_pip) == (["pip"], ["-e .[test]"])
    on_binder = [python, "pip", torch.replace("torch", "pytorch-cpu")]
    assert dependencies(".binder/environment.yml") == (on_binder, ["-e ..[serve]"])


def test_the_image_of_a_class_has_the_project_and_a_reader_who_may_write_to_their_folder_alone():
    source, classes = read("Dockerfile").replace("\\\n", " "), read("CLASSES.md")
    steps = [line.split(None, 1) for line in source.splitlines() if line and not line.startswith("#")]
    once = dict(steps)  # of what is there once
    python = dependencies(".binder/environment.yml")[0][0]
    assert once["FROM"] == f"{python.replace('=', ':')}-slim" and once["COPY"] == ". ."
    (install,) = [text for step, text in steps if step == "RUN" and "pip install" in text]
    assert shlex.split(install)[3:5] == ["-e", ".[serve]"]
    assert once["USER"] == "reader" and "mkdir -p notebooks/mine && chown reader notebooks/mine" in source
    left_out = read(".dockerignore").splitlines()
    assert {".git", ".venv", "notebooks/mine"} <= set(left_out)
    assert not {"labkit", "notebooks", "data", "pyproject.toml"} & set(left_out)
    command = json.loads(once["CMD"])[:3]
    assert command == ["python", "-m", "labkit"] and f"= {json.dumps(command)}, " in classes
    assert f'"{once["WORKDIR"]}/notebooks/mine"' in classes and once["ENV"] in classes


def test_the_book_has_every_page_and_text_in_order_and_executes_nothing():
    contents, config = yaml.safe_load(read("book/_toc.yml")), yaml.safe_load(read("book/_config.yml"))
    chapters = [part for chapter in contents["chapters"] for part in (chapter, *chapter.get("sections", []))]
    files = [contents["root"], *(part["file"] for part in chapters)]
    pages = [folder / page.notebook for page in all_pages() for folder in (FOLDER, FOLDER / "deeper")]
    notebooks = [f"notebooks/{name_of(path)}" for path in pages if path.exists()]
    assert files[: 1 + len(notebooks)] == ["README", *notebooks]
    assert set(files) == {*notebooks, *(path.stem for path in ROOT.glob("*.md")), "data/tiny-gpt2/README"}
    assert config["execute"] == {"execute_notebooks": "off"} and config["only_build_toc_files"] is True
