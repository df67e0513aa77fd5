"""Python's calls, heard of."""

import sys

import pytest

from labkit import watch


def called():
    return None


def test_calls_inside_the_block_are_heard_of_and_none_outside():
    heard = []

    def on_event(frame, event, _):
        if event == "call":
            heard.append(frame.f_code.co_name)

    called()
    with watch.profiled_by(on_event):
        called()
    called()
    assert heard.count("called") == 1


def test_who_listened_before_listens_again_even_after_an_error():
    def earlier(*_):
        return None

    sys.setprofile(earlier)
    try:
        with pytest.raises(ZeroDivisionError), watch.profiled_by(lambda *_: None):
            raise ZeroDivisionError
        assert sys.getprofile() is earlier
    finally:
        sys.setprofile(None)
