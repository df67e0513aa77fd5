"""A process that is kept while it answers, and replaced when it does not."""

import os
import sys

import pytest
from confined_calls import obey

from labkit.bench.confined import Confined, FellError

GiB = 2**30


def fell(confined, what):
    with pytest.raises(FellError) as error:
        confined(what)
    return str(error.value)


@pytest.mark.slow
def test_a_call_that_raises_grows_hangs_or_dies_is_told_and_the_next_one_answers():
    with Confined(obey, seconds=1, memory=GiB) as confined:
        first = confined("hello")
        assert first.startswith("hello in ") and first != f"hello in {os.getpid()}"
        assert fell(confined, "raise") == "KeyError: 'gone'"
        assert fell(confined, "panic") == "SystemExit: a BaseException"
        if sys.platform == "linux":
            assert fell(confined, "grow").startswith("MemoryError")
        assert confined("hello") == first  # the same process
        assert fell(confined, "hang") == "it took more than 1 s"
        assert confined("hello") != first
        assert fell(confined, "die") == "its process ended with exit status 9"


def test_without_a_call_there_is_no_process():
    with Confined(obey, seconds=1, memory=GiB) as confined:
        assert confined._process is None
