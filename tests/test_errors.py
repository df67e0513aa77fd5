"""Errors: one kind to catch them all, and each is also what Python calls such an error."""

import inspect

import pytest

from labkit import errors
from labkit.errors import LabkitError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind is not LabkitError]
OF_VALUES = {"CheckpointError", "RequestError", "RecordError", "OptionError"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_caught_as_labkits_and_as_pythons(kind):
    assert kind.__mro__[1:3] == (LabkitError, ValueError if kind.__name__ in OF_VALUES else RuntimeError)
    assert str(kind("what was wrong")) == "what was wrong"


def test_no_error_is_another_ones_kind():
    assert len(KINDS) == 10
    assert not [kind for kind in KINDS for other in KINDS if kind is not other and issubclass(kind, other)]


@pytest.mark.parametrize("kind", [LabkitError, *KINDS], ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_is_for(kind):
    assert inspect.getdoc(kind) != inspect.getdoc(Exception)
