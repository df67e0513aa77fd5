"""`python -m labkit`, with a stand-in for JupyterLab."""

import json
import os
import sys

import pytest

from labkit import __main__ as labkit_main
from labkit import paths
from labkit.ladder import all_pages
from labkit.paths import ROOT

LabApp = pytest.importorskip("jupyterlab.labapp").LabApp  # a GPU's machine may be without


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


@pytest.mark.slow
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
    layout.write_text("the reader's")  # what was open the last time
    assert started()[1]["JUPYTERLAB_WORKSPACES_DIR"] == str(layouts)
    assert layout.read_text() == "the reader's"


def test_a_jupyterhub_gets_a_server_of_its_own_kind(started, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    arguments, _ = started(server="jupyterhub.singleuser")
    assert arguments[0] == f"--ServerApp.root_dir={ROOT}"


@pytest.mark.slow
def test_settings_of_ours_are_below_the_readers(started, monkeypatch):
    _, environment = started()
    assert environment["JUPYTER_CONFIG_PATH"] == str(ROOT / "labkit/jupyter")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")
    _, environment = started()
    assert environment["JUPYTER_CONFIG_PATH"] == os.pathsep.join(["/theirs", str(ROOT / "labkit/jupyter")])
    (settings,) = (ROOT / "labkit/jupyter/labconfig").iterdir()
    (plugin,) = json.loads(settings.read_text()).items()
    assert plugin[1] == {"checkForUpdates": False, "fetchNews": "false"}


def test_the_first_layout_shows_the_home_page():
    layout = json.loads(labkit_main.FIRST_LAYOUT.read_text())["data"]
    shown = "notebook:notebooks/mine/index.ipynb"
    assert layout["layout-restorer:data"]["main"]["current"] == shown
    assert layout[shown]["data"]["path"] == shown.removeprefix("notebook:")


def test_where_nothing_can_be_written_the_notebooks_themselves_are_shown(started, capsys):
    paths.MINE.write_text("in the way")
    arguments, environment = started()
    assert "--LabApp.default_url=/lab/tree/notebooks" in arguments
    assert "JUPYTERLAB_WORKSPACES_DIR" not in environment.keys() - os.environ.keys()
    assert "will not be saved" in capsys.readouterr().out


@pytest.fixture
def server(started, monkeypatch, tmp_path):
    """A function: the server that JupyterLab makes of our arguments and our settings, before it starts."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "none"))  # the reader's own
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("JUPYTER_TOKEN", raising=False)

    def make(*arguments):
        given, environment = started(*arguments)
        monkeypatch.setenv("JUPYTER_CONFIG_PATH", environment["JUPYTER_CONFIG_PATH"])
        app = LabApp.serverapp_class()
        app.load_config_file()
        app.parse_command_line(given)
        app.identity_provider = app.identity_provider_class(parent=app, log=app.log)
        return app

    return make


def test_jupyterlab_listens_on_this_machine_alone_and_asks_for_its_token(server):
    app = server("--no-browser")
    assert app.ip == "localhost" and not app.allow_remote_access and not app.allow_origin
    assert not app.disable_check_xsrf
    identity = app.identity_provider
    assert len(identity.token) >= 32 and identity.token_generated and identity.auth_enabled


def test_our_settings_open_nothing():
    """What lies beside them would be a server's configuration, too: there is none."""
    files = sorted(p.relative_to(labkit_main.SETTINGS).as_posix() for p in labkit_main.SETTINGS.rglob("*.*"))
    assert files == ["first_layout.json", "labconfig/default_setting_overrides.json"]
