"""Errors: one kind to catch them all, and each is also what Python calls such an error."""

import inspect

from labkit import errors
from labkit.errors import LabkitError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind is not LabkitError]
OF_VALUES = {"CheckpointError", "RequestError", "RecordError", "OptionError"}


def test_every_error_can_be_caught_as_labkits_and_as_pythons_and_says_what_it_is_for():
    assert len(KINDS) == 11
    for kind in KINDS:
        assert kind.__mro__[1:3] == (LabkitError, ValueError if kind.__name__ in OF_VALUES else RuntimeError)
        assert kind.__doc__ and str(kind("what was wrong")) == "what was wrong"
