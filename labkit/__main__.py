"""`python -m labkit`: JupyterLab on the reader's own copies of the notebooks. Arguments are JupyterLab's.

Started by a JupyterHub, it is the reader's server there.

The first time it shows the home page, which lists all notebooks; later what was open the last time.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit import paths
from labkit.copies import make_copies, told
from labkit.errors import ProjectError

SETTINGS = paths.ROOT / "labkit" / "jupyter"  # defaults, below what the reader has set
FIRST_LAYOUT = SETTINGS / "first_layout.json"
DEFAULT_LAYOUT = "default-37a8.jupyterlab-workspace"  # JupyterLab's name for the layout of its plain address


def main() -> int:
    """Make the copies and start JupyterLab; the exit status is JupyterLab's."""
    try:
        paths.require_project()
    except ProjectError as error:
        sys.exit(str(error))
    config_path = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH"), str(SETTINGS)])
    environment = os.environ | {"JUPYTER_CONFIG_PATH": os.pathsep.join(config_path)}
    try:
        print(f"Your notebooks are in {paths.MINE}\n{told(make_copies())}", end="")
        environment["JUPYTERLAB_WORKSPACES_DIR"] = str(layouts())
        opened: list[str] = []
    except OSError as error:
        print(f"{paths.MINE} cannot be written ({error.strerror}): what you do will not be saved.")
        opened = ["--LabApp.default_url=/lab/tree/notebooks"]
    root = [] if getattr(os, "geteuid", lambda: 1)() else ["--allow-root"]
    place = f"--ServerApp.root_dir={paths.ROOT}"
    server = "jupyterhub.singleuser" if "JUPYTERHUB_API_TOKEN" in os.environ else "jupyterlab"
    return run([sys.executable, "-m", server, place, *opened, *root, *sys.argv[1:]], environment)


def layouts() -> Path:
    """Where JupyterLab keeps what is open, beside the copies; at first it holds FIRST_LAYOUT."""
    folder = paths.MINE / ".jupyterlab"
    if not folder.exists():
        folder.mkdir()
        shutil.copyfile(FIRST_LAYOUT, folder / DEFAULT_LAYOUT)
    return folder


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run a program in this one's place, so that its signals are its own; its exit status."""
    if sys.platform == "win32":  # where a program cannot take another's place
        return subprocess.call(command, env=environment)
    sys.stdout.flush()
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    sys.exit(main())
