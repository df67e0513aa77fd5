"""Tables of wrong values, each for every argument that it is wrong for."""

import collections
import itertools
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Boom

from labkit import SamplingParams

NO_FILES = {  # what stands at a file's path in its place
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}
HUGE = 10**5000  # Python refuses to write so many digits


class Broken:
    """A value whose own code raises."""

    def __repr__(self):
        raise RuntimeError("repr fails")

    def __index__(self):
        raise RuntimeError("index fails")


class BrokenList(list):
    def __iter__(self):
        raise RuntimeError("iter fails")


class BreaksAfterOne(list):
    def __iter__(self):
        yield self[0]
        raise RuntimeError("the second fails")


class Uncounted(list):
    def __len__(self):
        raise RuntimeError("len fails")


class Made:
    """A generator can be read once, so a table has what makes it."""

    def __init__(self, make):
        self.make = make


class NeverRead(collections.abc.Sequence):
    """Longer than any model; whoever reads it fails the test."""

    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        raise Boom


# What is no argument of any kind; each table adds what looks almost right for its own.
JUNK = {
    "a number": 5,
    "a float": 1.5,
    "infinity": float("inf"),
    "a huge number": HUGE,
    "text": "x",
    "bytes": b"x",
    "a list": [],
    "a tuple": (1, "x"),
    "a dict": {"a": 1},
    "an array": np.array([1, 2]),
    "a 0-d array": np.array(3),
    "a tensor": torch.tensor([1, 2]),
    "a class": int,
    "a generator": (i for i in ()),
    "what raises": Broken(),
    "megabytes of text": "x" * 10**7,
    "megabytes of bytes": b"x" * 10**7,
}


def without(table, *labels):
    return {label: value for label, value in table.items() if label not in labels}


@contextmanager
def refused(error, match):
    """The error whose message, a line, says what is wrong."""
    with pytest.raises(error, match=match) as refusal:
        yield
    message = str(refusal.value)
    assert len(message) < 400 and "\n" not in message


NO_SIZE = without(JUNK, "a number", "a huge number") | {
    "zero": 0,
    "a negative number": -1,
    "a huge negative number": -HUGE,
    "True": True,
    "text of a number": "8",
    "a whole float": 8.0,
    "NumPy's number": np.int64(8),
    "torch's number": torch.tensor(8),
}
NO_BOOL = JUNK | {
    "None": None,
    "1": 1,
    "'no'": "no",
    "NumPy's": np.False_,
    "torch's": torch.tensor(True),
}
NO_CHOICE = JUNK | {
    "None": None,
    "no text": "",
    "the wrong case": "FIFO",
    "a list of choices": ["fifo", "auto"],
}
NO_RUNG = JUNK | {"None": None, "a number of a rung": 5, "no text": "", "one digit": "5", "past": "99"}
BAD_PROMPTS = without(JUNK, "text", "an array", "a tensor") | {
    "None": None,
    "True": True,
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"xy"),
    "a dict of ids": {1: 2},
    "keys of a dict": {1: 2}.keys(),
    "a frozenset": frozenset({1}),
    "a 0-d tensor": torch.tensor(3),
    "a 2-D array": np.array([[1, 2]]),
    "floats": [1.0],
    "a tensor of bools": torch.tensor([True, False]),
    "a tensor of complex numbers": torch.tensor([1j]),
    "tensors of one number": [torch.tensor([1]), torch.tensor([2])],
    "a masked array": np.ma.array([1, 2], mask=[False, True]),
    "a meta tensor": torch.ones(3, dtype=torch.int64, device="meta"),
    "a huge negative id": [-HUGE],
    "an id that raises": [1, Broken()],
    "ids that raise": BrokenList([1, 2]),
    "ids that raise later": BreaksAfterOne([1, 2]),
    "a length that raises": Uncounted([1, 2]),
    "a generator that raises": Made(lambda: (1 // (2 - i) for i in range(1, 9))),
    "a file": open(__file__, "rb"),  # noqa: SIM115  (never read)
}
ENDLESS = {
    "count": Made(itertools.count),
    "a view without memory": torch.zeros(1, dtype=torch.int64).expand(10**15),
    "an array without memory": np.broadcast_to(np.int64(1), 10**15),
    "never read": NeverRead(),
    "a million words": "To be " * 10**6,
}


def fresh(prompt):
    return prompt.make() if isinstance(prompt, Made) else prompt


BAD_PARAMS = JUNK | {"None": None, "the class": SamplingParams, "a dict of fields": {"max_new_tokens": 3}}
