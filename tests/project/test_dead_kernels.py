"""A notebook's kernel that died fails its cell, and one that works on is waited for."""

from queue import Empty
from types import SimpleNamespace

import pytest

RunningKernel = pytest.importorskip("nbval.kernel").RunningKernel

from dead_kernels import TURN, noticing  # noqa: E402


def kernel(is_alive: bool, *answers):
    """A kernel and its `get_message`, which gives each answer in turn, None being none in time."""
    left, waited = list(answers), []

    def get_message(kernel, stream, timeout):
        waited.append(timeout)
        if (answer := left.pop(0)) is None:
            raise Empty
        return answer

    return SimpleNamespace(is_alive=lambda: is_alive), noticing(get_message), waited


def test_a_dead_kernel_is_not_waited_for():
    dead, get_message, waited = kernel(False, None)
    with pytest.raises(RuntimeError, match="the kernel died"):
        get_message(dead, "shell", 1800)
    assert waited == [TURN]


def test_a_kernel_that_lives_is_waited_for_until_the_cells_time_ends():
    alive, get_message, waited = kernel(True, None, None, {"msg": 1})
    assert get_message(alive, "shell", 1800) == {"msg": 1}
    assert waited == [TURN] * 3
    alive, get_message, waited = kernel(True, None)
    with pytest.raises(Empty):
        get_message(alive, "shell", 0)
    assert waited == [0]


def test_notebooks_are_run_so():
    assert RunningKernel.get_message.__module__ == "dead_kernels"
