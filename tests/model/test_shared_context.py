"""A context that several enter at once."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest import mock

import pytest
from traced import at_lines, interrupts_raise  # noqa: F401

from labkit.model import shared_context
from labkit.model.shared_context import SharedContext


def interrupted_at(line):
    return at_lines([line], lambda: signal.raise_signal(signal.SIGINT), within=shared_context.__file__)


@pytest.fixture
def setting():
    return {"on": True}


@pytest.fixture
def off(setting):
    return SharedContext(lambda: mock.patch.dict(setting, on=False))


def test_the_first_enters_it_and_the_last_leaves_it(setting, off):
    with ThreadPoolExecutor(1) as other:
        with off:
            other.submit(off.__enter__).result()
        assert not setting["on"]
        other.submit(off.__exit__).result()
    assert setting["on"]


@pytest.mark.parametrize("line", [1, 2, 3, 4])
def test_whoever_is_interrupted_as_it_leaves_has_left_it_after_the_next_time(setting, off, line):
    off.__enter__()
    with pytest.raises(KeyboardInterrupt), interrupted_at(line):
        off.__exit__()
    with off:
        assert not setting["on"] or line == 4
    assert setting["on"]


@pytest.mark.parametrize("line", [1, 2, 3, 4, 5])
def test_an_interrupt_as_it_is_entered_leaves_nothing_behind_and_an_error_passes(setting, off, line):
    with suppress(KeyboardInterrupt), interrupted_at(line):
        off.__enter__()
    with pytest.raises(ValueError, match="mine"), off:
        assert not setting["on"]
        raise ValueError("mine")
    assert setting["on"]
