"""What an engine and a server are made of."""

import numpy as np
import torch
from bad_input import arguments_of, values_of
from bad_values import JUNK, NO_SIZE, without
from helpers import make_engine, small_model

from labkit import LADDER, CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine import StreamingServer
from labkit.errors import OptionError

MODEL = small_model()
DEVICES = ("", "banana", "CPU", " cpu", "cpu ", "cpu\n", "cpu:", "cpu:1", "meta", "mps", "xpu", "gpu")
DEVICES += ("cuda:", "cuda:-1", "cuda:01", "cuda:1.0", "cuda:٠", "cuda 0", "cuda:" + "9" * 5000)
DTYPES = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex32)
DTYPES += (torch.float8_e4m3fn, torch.float8_e5m2, torch.qint8, float, np.float32, np.dtype("float32"))
DTYPES += ("float32", "torch.float32", "fp16", "auto", "", 0, False, 16)
MEMORY = {
    "blocks of 10**9 tokens": {"cache": CacheConfig(block_size=10**9)},
    "10**9 blocks": {"cache": CacheConfig(max_blocks_per_layer=10**9)},
    "2**63 blocks": {"cache": CacheConfig(max_blocks_per_layer=2**63)},
    "a batch of 10**10": {"scheduler": SchedulerConfig(max_batch_size=10**10)},
    "a batch of 2**63": {"scheduler": SchedulerConfig(max_batch_size=2**63)},
}
ENGINE = {
    "model": JUNK | {"None": None, "the GPT2 inside": MODEL.network},
    "options": JUNK | {"a rung": LADDER["05"], "fields in a dict": {"block_tables": "rebuilt"}},
    "cache": JUNK | {"None": None, "the other config": SchedulerConfig(), "the class": CacheConfig},
    "scheduler": JUNK | {"None": None, "the other config": CacheConfig(), "the class": SchedulerConfig},
    "device": JUNK
    | {repr(name)[:20]: name for name in DEVICES}
    | {
        "zero": 0,
        "True": True,
        "the meta device": torch.device("meta"),
        "the second CPU": torch.device("cpu", 1),
    },
    "dtype": JUNK | {repr(dtype): dtype for dtype in DTYPES},
}
SERVER = {
    "engine": JUNK | {"None": None, "a model": MODEL, "the class": InferenceEngine},
    "max_inflight_requests": NO_SIZE,
    "stream_interval": NO_SIZE | {"None": None},
    "tokenize_workers": without(NO_SIZE, "zero") | {"None": None},
}
NO_PART = "parts|no option with a part|the part for block_tables|no use for a launch"
TOO_LARGE = "the KV pool is too large: .* Lower block_size|the logits .* Lower max_batch_size"
PARTS = without(JUNK, "a dict", "a list") | {
    "no option": {"colour": CacheConfig},
    "a name that is no text": {5: CacheConfig},
    "a part that is no function": {"block_tables": 5},
    "a part by its name": {"block_tables": "cached"},
    "a list of pairs": [("block_tables", CacheConfig)],
    "what the options do not use": {"launch": CacheConfig},
}


def make(_, **bad) -> InferenceEngine:
    return InferenceEngine(**{"model": MODEL, "options": LADDER["00"].options, "device": "cpu"} | bad)


def serve(_, **bad) -> StreamingServer:
    return StreamingServer(**{"engine": make_engine()} | bad)


CASES = [
    *arguments_of("InferenceEngine", make, ENGINE, OptionError),
    *values_of(
        OptionError,
        ("InferenceEngine, parts", NO_PART, lambda _, bad: make(_, parts=bad), PARTS),
        ("InferenceEngine, memory", TOO_LARGE, lambda _, bad: make(_, **bad), MEMORY),
    ),
    *arguments_of("StreamingServer", serve, SERVER, OptionError),
]
