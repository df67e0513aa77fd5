"""Kernels for notebooks under test, forked from a process that has imported what each of them imports.

A kernel that is started anew imports PyTorch, pandas and matplotlib, and takes them apart when it ends; a
forked one does neither.
"""

import multiprocessing
import os
import sys
from multiprocessing import connection, forkserver
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from jupyter_client.provisioning import local_provisioner

TESTS = str(Path(__file__).parents[1])
# labkit first: it turns Triton's interpreter on. Behind it what gates and profiles look up when they run.
IMPORTED = ["ipykernel.kernelapp", "labkit.lab", "torch._inductor", "transformers.models.gpt2.modeling_gpt2"]
IMPORTED += ["transformers.models.auto.modeling_auto"]
INLINE = "module://matplotlib_inline.backend_inline"  # as a kernel asks for before matplotlib is imported
FORKED = multiprocessing.get_context("forkserver")


class ForkedKernel:
    """What jupyter_client asks of a kernel's `subprocess.Popen`; it sends signals to the process group."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], env: dict[str, str], cwd: str, **_: Any) -> None:
        begun, begins = FORKED.Pipe(duplex=False)
        self._process = FORKED.Process(target=run_kernel, args=(command, env, cwd, begins))
        # A child would run the file of `__main__` first: that may be a shell of the tests by now, with the
        # name of a file of Triton's among its names.
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            with patch.dict(os.environ, MPLBACKEND=INLINE):
                forkserver.ensure_running()
            self._process.start()
        finally:
            sys.modules["__main__"] = main
        begins.close()  # so that a child that has died is no wait without end
        begun.recv()  # it has a group of its own now
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def run_kernel(command: list[str], env: dict[str, str], cwd: str, begins: connection.Connection) -> None:
    """command: `python -m ipykernel_launcher -f file`."""
    import pandas
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    begins.send(None)
    with open(os.devnull, "w") as nowhere:  # a kernel's own messages; what cells print is sent
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(cwd)
    os.environ.update(env)
    sys.path = [place for place in sys.path if not place.startswith(TESTS)]
    pandas.set_option("display.max_columns", 20)  # as it is where a kernel imports it
    IPKernelApp.launch_instance(argv=command[3:])


def install() -> None:
    FORKED.set_forkserver_preload(IMPORTED)
    local_provisioner.launch_kernel = ForkedKernel  # type: ignore[assignment]
