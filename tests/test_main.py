"""`python -m labkit`, with a stand-in for JupyterLab."""

import json
import os
import sys

import pytest

from labkit import __main__ as labkit_main
from labkit import paths
from labkit.ladder import all_pages
from labkit.paths import ROOT


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A function: run `python -m labkit` with arguments; arguments and environment that JupyterLab gets."""
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)

    def start(*arguments, server="jupyterlab"):
        calls = []
        monkeypatch.setattr(labkit_main, "run", lambda *call: calls.append(call) or 0)
        monkeypatch.setattr(sys, "argv", ["labkit", *arguments])
        assert labkit_main.main() == 0
        ((command, environment),) = calls
        assert command[:3] == [sys.executable, "-m", server]
        return command[3:], environment

    return start


def test_jupyterlab_opens_on_the_project_with_the_readers_copies_and_layout(started, capsys):
    arguments, environment = started("--no-browser", "--port=8899")
    as_root = ["--allow-root"] if os.geteuid() == 0 else []
    assert arguments == [f"--ServerApp.root_dir={ROOT}", *as_root, "--no-browser", "--port=8899"]
    assert (paths.MINE / all_pages()[0].notebook).is_file()
    layouts = paths.MINE / ".jupyterlab"
    assert environment["JUPYTERLAB_WORKSPACES_DIR"] == str(layouts)
    (layout,) = layouts.iterdir()
    assert layout.read_bytes() == labkit_main.FIRST_LAYOUT.read_bytes()
    assert capsys.readouterr().out == f"Your notebooks are in {paths.MINE}\n"


def test_a_jupyterhub_gets_a_server_of_its_own_kind(started, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    arguments, _ = started(server="jupyterhub.singleuser")
    assert arguments[0] == f"--ServerApp.root_dir={ROOT}"


def test_what_was_open_the_last_time_stays(started):
    started()
    (layout,) = (paths.MINE / ".jupyterlab").iterdir()
    layout.write_text("the reader's")
    started()
    assert layout.read_text() == "the reader's"


def test_settings_of_ours_are_below_the_readers(started, monkeypatch):
    _, environment = started()
    assert environment["JUPYTER_CONFIG_PATH"] == str(ROOT / "labkit/jupyter")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")
    _, environment = started()
    assert environment["JUPYTER_CONFIG_PATH"] == os.pathsep.join(["/theirs", str(ROOT / "labkit/jupyter")])
    (settings,) = (ROOT / "labkit/jupyter/labconfig").iterdir()
    (plugin,) = json.loads(settings.read_text()).items()
    assert plugin[1] == {"checkForUpdates": False, "fetchNews": "false"}


def test_the_first_layout_shows_the_first_notebook_of_the_course():
    layout = json.loads(labkit_main.FIRST_LAYOUT.read_text())["data"]
    shown = f"notebook:notebooks/mine/{all_pages()[0].notebook}"
    assert layout["layout-restorer:data"]["main"]["current"] == shown
    assert layout[shown]["data"]["path"] == shown.removeprefix("notebook:")


def test_where_nothing_can_be_written_the_notebooks_themselves_are_shown(started, capsys):
    paths.MINE.write_text("in the way")
    arguments, environment = started()
    assert "--LabApp.default_url=/lab/tree/notebooks" in arguments
    assert "JUPYTERLAB_WORKSPACES_DIR" not in environment.keys() - os.environ.keys()
    assert "will not be saved" in capsys.readouterr().out


def test_the_copies_that_were_left_are_named(started, monkeypatch, capsys):
    monkeypatch.setattr(labkit_main, "make_copies", lambda: paths.MINE.mkdir() or ["01_lesson.ipynb"])
    started()
    assert "01_lesson.ipynb is newer now." in capsys.readouterr().out
