"""Checkpoints: what is asked for. What is wrong with files is in tests/soak/test_damaged_files.py."""

import numpy as np
import torch
from bad_input import values_of
from bad_values import JUNK, without

from labkit import load_model
from labkit.errors import CheckpointError

SOURCES = without(JUNK, "text", "megabytes of text") | {
    "None": None,
    "True": True,
    "no text": "",
    "5,000 letters": "a" * 5000,
}
PLACES = ("~no-such-user", "~no-such-user/x", "/" + "a" * 300, "a\0b", "/dev/null", "/etc/hostname", "..a//b")
NOWHERE = {repr(name)[:20]: name for name in PLACES}
NO_NAMES = ("random:", "random:gpt3", "random:GPT2", "random:../x", "random: gpt2", "random:\ud800")
NAMES = {repr(name): name for name in NO_NAMES}
DTYPES = JUNK | {
    "None": None,
    **{repr(name): name for name in ("float16", "float32", "torch.float32", "", float, np.float32)},
    **{str(kind): kind for kind in (torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2)},
}
SEEDS = without(JUNK, "a number", "a 0-d array") | {
    "None": None,
    "True": True,
    "2**64": 2**64,
    "-(2**63) - 1": -(2**63) - 1,
}

CASES = values_of(
    CheckpointError,
    ("load_model, source", "source", lambda _, bad: load_model(bad), SOURCES),
    ("load_model, source", "there is no directory", lambda _, bad: load_model(bad), NOWHERE),
    ("load_model, source", "no random model", lambda _, bad: load_model(bad), NAMES),
    ("load_model, dtype", "dtype", lambda _, bad: load_model("random:gpt2", bad), DTYPES),
    ("load_model, seed", "seed", lambda _, bad: load_model("random:gpt2", seed=bad), SEEDS),
)
