"""A context that several threads enter at once."""

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from labkit.model.prefill_attention import SharedContext


def test_the_first_enters_it_and_the_last_leaves_it_and_an_error_passes():
    setting = {"on": True}
    off = SharedContext(lambda: mock.patch.dict(setting, on=False))
    with ThreadPoolExecutor(1) as other:
        with off:
            other.submit(off.__enter__).result()
        assert not setting["on"]
        other.submit(off.__exit__).result()
    assert setting["on"]
    with pytest.raises(ValueError, match="mine"), off:
        assert not setting["on"]
        raise ValueError("mine")
    assert setting["on"]
