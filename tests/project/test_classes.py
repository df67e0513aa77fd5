"""The image for a class, and what CLASSES.md says of it."""

import json
import re
import shlex

import pytest
import yaml

from labkit.learn.progress import progress_file
from labkit.paths import ROOT


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


CLASSES = read("CLASSES.md")
SOURCE = read("Dockerfile").replace("\\\n", " ")
STEPS = [tuple(line.split(None, 1)) for line in SOURCE.splitlines() if line and not line.startswith("#")]
ONCE = dict(STEPS)  # of what is there once


def test_the_image_is_made_as_binders_is():
    binder = yaml.safe_load(read(".binder/environment.yml"))
    python = binder["dependencies"][0]
    assert ONCE["FROM"] == f"{python.replace('=', ':')}-slim"
    (install,) = [text for step, text in STEPS if step == "RUN" and "pip install" in text]
    words = shlex.split(install.split("&&")[0])
    assert words[:3] == ["pip", "install", "--no-cache-dir"]
    assert words[3:5] == ["-e", "."] and re.fullmatch(r"jupyterhub>=\d+,<\d+", words[5])
    assert ONCE["ARG"] == "PIP_EXTRA_INDEX_URL" and f"--build-arg {ONCE['ARG']}=" in CLASSES


def test_the_image_has_the_project_and_a_reader_who_may_write_to_their_folder_alone():
    assert (ONCE["COPY"], ONCE["USER"]) == (". .", "reader")
    mine = "notebooks/mine"
    assert f"mkdir -p {mine} && chown reader {mine}" in SOURCE
    left_out = read(".dockerignore").splitlines()
    assert {".git", ".venv", mine} <= set(left_out)
    assert not {"labkit", "notebooks", "data", "pyproject.toml"} & set(left_out)


def test_a_hub_starts_the_image_as_it_starts_itself():
    command = json.loads(ONCE["CMD"])
    assert command[:3] == ["python", "-m", "labkit"] and (ROOT / "labkit/__main__.py").is_file()
    assert f"= {json.dumps(command[:3])}, " in CLASSES
    assert f'"{ONCE["WORKDIR"]}/notebooks/mine"' in CLASSES
    assert ONCE["ENV"] in CLASSES


@pytest.mark.parametrize(
    "name", ["Dockerfile", "CHANGELOG.md", "notebooks/mine/progress.json", "LABKIT_MINE"]
)
def test_what_classes_names_is_what_the_project_has(name):
    assert name in CLASSES
    known = {
        f"notebooks/mine/{progress_file().name}",
        *re.findall(r'"(LABKIT_\w+)"', read("labkit/paths.py")),
    }
    assert name in known or (ROOT / name).is_file()
