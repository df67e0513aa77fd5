"""A context that several enter at once."""

from contextlib import contextmanager

import pytest

from labkit.model.shared_context import SharedContext


@pytest.fixture
def setting():
    return {"on": True}


@pytest.fixture
def off(setting):
    @contextmanager
    def turned_off():
        found = setting["on"]
        setting["on"] = False
        try:
            yield
        finally:
            setting["on"] = found

    return SharedContext(turned_off)


def test_the_first_enters_it_and_the_last_leaves_it(setting, off):
    seen = []
    for move in (off.__enter__, off.__enter__, lambda: off.__exit__(None, None, None)):
        move()
        seen.append(setting["on"])
    off.__exit__(None, None, None)
    assert seen == [False] * 3 and setting["on"]
    with off:
        assert not setting["on"]
    assert setting["on"]


def test_an_error_passes_and_the_setting_is_back(setting, off):
    with pytest.raises(ValueError, match="mine"), off:
        raise ValueError("mine")
    assert setting["on"]
