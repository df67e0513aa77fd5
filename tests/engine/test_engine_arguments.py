"""Arguments of the engine: what is something else is refused by name."""

import numpy as np
import pytest
import torch
from bad_values import JUNK, refused_by_name, rows
from helpers import CONFIG, small_model

from labkit import LADDER, CacheConfig, EngineOptions, InferenceEngine, SchedulerConfig
from labkit.errors import OptionError

ENGINE_ARGUMENTS = rows(
    model=JUNK
    | {
        "None": None,
        "a path": "data/tiny-gpt2",
        "the GPT2 inside": small_model().network,
        "a config": CONFIG,
        "the class": type(small_model()),
    },
    options=JUNK
    | {
        "None": None,
        "a rung's number": "05",
        "a rung": LADDER["05"],
        "the ladder": LADDER,
        "the class": EngineOptions,
        "fields in a dict": {"block_tables": "rebuilt"},
    },
    cache=JUNK | {"None": None, "the other config": SchedulerConfig(), "the class": CacheConfig},
    scheduler=JUNK | {"None": None, "the other config": CacheConfig(), "the class": SchedulerConfig},
    device=JUNK
    | {
        **{repr(name): name for name in ("", "banana", "CPU", " cpu", "cpu ", "cpu\n", "cpu:", "cpu:1")},
        **{repr(name): name for name in ("meta", "mps", "xpu", "hpu", "vulkan", "privateuseone", "gpu")},
        **{repr(name): name for name in ("cuda:", "cuda:-1", "cuda:01", "cuda:1.0", "cuda:٠", "cuda 0")},
        "an index of 5000 digits": "cuda:" + "9" * 5000,
        "zero": 0,
        "True": True,
        "False": False,
        "b'cpu'": b"cpu",
        "['cpu']": ["cpu"],
        "the meta device": torch.device("meta"),
        "the mps device": torch.device("mps"),
        "the second CPU": torch.device("cpu", 1),
        "the class": torch.device,
    },
    dtype=JUNK
    | {
        **{repr(name): name for name in ("float32", "torch.float32", "fp16", "auto", "")},
        **{
            str(kind): kind
            for kind in (
                *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64),
                *(torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2, torch.qint8),
            )
        },
        **{str(kind): kind for kind in (float, np.float32, np.dtype("float32"), torch.FloatTensor)},
        "0": 0,
        "False": False,
        "16": 16,
    },
)


@pytest.mark.parametrize(("name", "value"), ENGINE_ARGUMENTS)
def test_an_argument_of_the_engine_that_is_something_else_is_refused_by_name(name, value):
    arguments = {"model": small_model(), "device": "cpu"} | {name: value}
    with refused_by_name(OptionError, name):
        InferenceEngine(**arguments)
