"""JupyterLab in headless Chromium, on a copy of the project: what a reader sees and does."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.paths import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: CI runs as root. The rest keeps Chromium from looking for hosts of its maker.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "labkit-browser-test"
CELL_SECONDS = 1200  # for all cells of a notebook; a busy machine is no failure

# In the browser: the notebook that is shown, its cells, and what they printed.
PANEL = "const panel = window.jupyterapp.shell.currentWidget;"
TEXT_OF = """
  const outs = cell => cell.type === 'code' ? cell.outputs.toJSON() : [];
  const failed = out => out.output_type === 'error';
  const said = out => failed(out) ? `${out.ename}: ${out.evalue}`
    : [out.text ?? out.data?.['text/plain'] ?? ''].flat().join('');
  const textOf = cell => outs(cell).map(said).join('');"""
# A kernel that has died, of too little memory for one, never answers.
IN_TIME = f"""
  const inTime = work => Promise.race([work, new Promise((_, fail) => {{
    setTimeout(() => fail(new Error('no end within {CELL_SECONDS} s')), 1000 * {CELL_SECONDS});
    panel.sessionContext.statusChanged.connect((_, status) => {{
      if (['dead', 'autorestarting'].includes(status)) fail(new Error('the kernel has died'));
    }});
  }})]);"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a copy of the project from `folder` as `make lab` does; the address of JupyterLab."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("labkit", "data", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("mine", "__pycache__"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = f"-m labkit --no-browser --ip=127.0.0.1 --port={port} --expose-app-in-browser"
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),  # for the kernels
        "LABKIT_MINE": str(folder / "notebooks/mine"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
    }
    log = (folder / "server.log").open("w", encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, *command.split(), f"--IdentityProvider.token={TOKEN}"],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=log,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(server, address)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=60)
        log.close()


def _wait_until_it_answers(server: subprocess.Popen, address: str) -> None:
    for _ in range(1200):
        assert server.poll() is None, "JupyterLab ended at its start"
        try:
            urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5).read()
            return
        except OSError:
            time.sleep(0.25)
    raise AssertionError("JupyterLab does not answer")


@dataclass(frozen=True)
class OpenNotebook:
    """A notebook that is open in the browser."""

    page: Any  # playwright's

    def run_all(self) -> None:
        """Restart the kernel and run all cells, as the menu does."""
        self.page.evaluate(
            f"""async () => {{ {PANEL} {IN_TIME}
              await inTime(panel.sessionContext.restartKernel());
              await inTime(panel.sessionContext.session.kernel.info);
              await inTime(window.jupyterapp.commands.execute('notebook:run-all-cells')); }}"""
        )

    def run(self, index: int, source: str | None = None) -> str:
        """Run a code cell, after its source was replaced; what it printed."""
        return self.page.evaluate(
            f"""async ([index, source]) => {{ {PANEL} {TEXT_OF} {IN_TIME}
              panel.content.activeCellIndex = index;
              panel.content.deselectAll();
              if (source !== null) panel.content.activeCell.model.sharedModel.setSource(source);
              await inTime(window.jupyterapp.commands.execute('notebook:run-cell'));
              return textOf(panel.content.activeCell.model); }}""",
            [index, source],
        )

    def code(self) -> dict[int, str]:
        """The source of each code cell, by its place."""
        cells = self.page.evaluate(
            f"""() => {{ {PANEL}
              return [...panel.model.cells].map(cell => [cell.type, cell.sharedModel.getSource()]); }}"""
        )
        return {place: source for place, (kind, source) in enumerate(cells) if kind == "code"}

    def errors(self) -> list[str]:
        """What code cells raised, and those that never ran."""
        return self.page.evaluate(
            f"""() => {{ {PANEL} {TEXT_OF}
              return [...panel.model.cells].filter(cell => cell.type === 'code'
                && (cell.executionCount === null || outs(cell).some(failed)))
                .map(cell => textOf(cell) || 'never ran: ' + cell.sharedModel.getSource()); }}"""
        )


@contextmanager
def opened(browser: Any, address: str, notebook: str | None = None) -> Iterator[OpenNotebook]:
    """Open a reader's notebook, by its path below their folder, in a fresh workspace; by default, what
    JupyterLab opens."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(1000 * CELL_SECONDS)
    place = ""
    if notebook:
        workspace = notebook.removesuffix(".ipynb").replace("/", "_")  # with a dot in its name there is none
        place = f"workspaces/{workspace}/tree/notebooks/mine/{notebook}"
    try:
        page.goto(f"{address}/lab/{place}?token={TOKEN}{'&reset' if notebook else ''}")
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        # A restart while the server still greets a new kernel loses what the page sends after it.
        page.evaluate(
            f"""async () => {{ {PANEL} {IN_TIME} await panel.context.ready; await panel.sessionContext.ready;
              await inTime(panel.sessionContext.session.kernel.info); }}"""
        )
        yield OpenNotebook(page)
        # A kernel outlives its page, and fourteen of them are more than a machine's memory.
        page.evaluate(f"async () => {{ {PANEL} await panel.sessionContext.shutdown(); }}")
    finally:
        context.close()
