"""What a notebook calls: lessons and pages, the reader's own parts, predictions, progress, sources."""

import torch
from bad_input import arguments_of, values_of
from bad_values import JUNK, NO_RUNG, NO_SIZE, without

from labkit import lab
from labkit.errors import OptionError
from labkit.ladder import LADDER, LESSONS
from labkit.learn.kept import keep_all
from labkit.show import show_diff, show_source

HERE = lab.Lab(LESSONS["01"], torch.device("cpu"), lab.CPU_SCALE)
LAST = lab.Lab(LESSONS["20"], torch.device("cpu"), lab.CPU_SCALE)
DATA = []
SOUND = lab.check_batch  # a part that can be kept


def uses_data() -> list:
    return DATA


NO_PART = without(JUNK, "a class") | {"None": None, "its name": "CachedBlockTables"}
NO_SOURCE = without(JUNK, "a generator") | {"None": None, "a lambda": lambda: 1}
NO_TEXT = without(JUNK, "text", "megabytes of text") | {"None": None, "True": True}
NO_LENGTHS = without(JUNK, "a tuple") | {
    "None": None,
    "zero": [0],
    "negative": [20, -1],
    "a float": [1.5],
    "True": [True],
    "None among them": [20, None],
    "too long": [10**9],
}
NO_COUNT = NO_SIZE | {"None": None, "10**9": 10**9}
NAMES = {
    "another option": {"colour": uses_data},
    "no part": {},
    "one that another lesson proves": {"kv_append": uses_data},
}
FILE_NAMES = {"a path": "../x", "a path from the root": "/tmp/x", "no text": "", "a number": 5, "None": None}
FILE_NAMES |= {"a NUL": "a\0b", "spaces": "a b", "a line": "a\nb"}

SIZES_OF_CARD = {"batch_size": NO_COUNT, "lengths": NO_LENGTHS}
QUESTION = {"question": "q", "unit": "us"}
NO_QUESTION = dict.fromkeys(QUESTION, NO_TEXT)
BUILD = {
    "model": {"a path": "data/tiny-gpt2", "a number": 5, "a class": int},
    "cache": {"None": None, "a number": 8, "a dict": {"block_size": 8}},
    "scheduler": {"None": None, "a number": 8, "the ladder": LADDER},
    "dtype": {"text": "float32", "integers": torch.int8},
    "colour": {"a function": uses_data},
}
NOT_SHOWN = without(NO_SOURCE, "a lambda")

SIZES_OF_RUN = SIZES_OF_CARD | {"rounds": NO_COUNT}

CASES = [
    *values_of(
        OptionError,
        ("lab.start", "there is no lesson", lambda _, bad: lab.start(bad), NO_RUNG),
        ("lab.begin", "there is no page", lambda _, bad: lab.begin(bad), NO_RUNG),
        ("here.build", "part for block_tables", lambda _, bad: HERE.build(block_tables=bad), NO_PART),
        ("here.check", "proves block_tables", lambda _, bad: HERE.check(**bad), NAMES),
        ("here.check", "has no gate", lambda _, bad: LAST.check(**bad), NAMES),
        ("here.keep", "block_tables", lambda _, bad: HERE.keep(block_tables=bad), NO_SOURCE),
        ("here.keep", "keep needs the parts", lambda _, bad: HERE.keep(**bad), {"none": {}}),
        ("keep, option", "cannot be kept as", lambda _, bad: keep_all("01", {bad: SOUND}), FILE_NAMES),
        ("show_source", "has no source", lambda _, bad: show_source(bad), NOT_SHOWN),
        ("show_diff", "has no source", lambda _, bad: show_diff(uses_data, bad), NOT_SHOWN),
    ),
    *arguments_of("here.build", lambda _, **bad: HERE.build(**bad), BUILD, OptionError),
    *arguments_of("here.card", lambda _, **bad: HERE.card(**bad), SIZES_OF_CARD, OptionError),
    *arguments_of("here.measure", lambda _, **bad: HERE.measure(**bad), SIZES_OF_RUN, OptionError),
    *arguments_of("here.predict", lambda _, **bad: HERE.predict(**QUESTION | bad), NO_QUESTION, OptionError),
]
