"""Kernels of notebooks under test, forked: whatever a test before has made of `__main__`."""

import sys
from types import ModuleType

import pytest
from forked_kernels import ForkedKernel
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import local_provisioner

pytestmark = pytest.mark.slow


def test_a_kernel_starts_beside_a_shell_that_has_a_files_name(monkeypatch, tmp_path):
    """Triton's interpreter leaves its own `__file__` in the names of a shell whose kernels it has run."""
    file = tmp_path / "cannot_run.py"
    file.write_text("raise RuntimeError('run as __main__')")
    shell = ModuleType("__main__")
    shell.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", shell)
    monkeypatch.setattr(local_provisioner, "launch_kernel", ForkedKernel)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        assert client.execute_interactive("1 + 1", silent=True, timeout=60)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
