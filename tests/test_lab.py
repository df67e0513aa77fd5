"""The first cell of a lesson: where it runs, at what scale, and which lessons there are."""

import pytest
from bad_values import NO_RUNG, refused

from labkit import lab
from labkit.errors import OptionError


@pytest.mark.parametrize("number", NO_RUNG.values(), ids=NO_RUNG)
def test_what_is_no_lesson_is_refused(number, capsys):
    with refused(OptionError, "there is no lesson .*; there are 00, 01, .* 11, as text"):
        lab.start(number)
    assert capsys.readouterr().out == ""
