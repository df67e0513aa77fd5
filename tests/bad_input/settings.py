"""Sampling parameters, the engine's options, and the configs of cache and scheduler."""

from dataclasses import asdict
from fractions import Fraction

import numpy as np
import torch
from bad_input import BadInput, arguments_of, values_of
from bad_values import HUGE, JUNK, NO_BOOL, NO_CHOICE, NO_RUNG, NO_SIZE, without

from labkit import LADDER, CacheConfig, EngineOptions, SamplingParams, SchedulerConfig
from labkit.errors import OptionError, RequestError

NO_NUMBER = without(JUNK, "a number", "a float") | {
    "None": None,
    "True": True,
    "NaN": float("nan"),
    "a negative number": -1,
    "just below zero": -1e-9,
    "a huge negative number": -HUGE,
    "text of a number": "0.5",
    "Fraction": Fraction(1, 2),
    "NumPy's float32": np.float32(0.5),
    "torch's number": torch.tensor(0.5),
}
SAMPLING = {
    "max_new_tokens": NO_SIZE | {"None": None, "NaN": float("nan")},
    "temperature": NO_NUMBER,
    "top_p": NO_NUMBER | {"zero": 0, "above one": 1.0001},
    "min_p": NO_NUMBER | {"above one": 1.0001},
    "top_k": without(NO_SIZE, "zero") | {"None": None},
    "seed": without(NO_SIZE, "zero", "a negative number", "a huge negative number"),
    "logprobs": without(NO_SIZE, "zero") | {"above twenty": 21},
    "stop": without(JUNK, "text", "a list", "megabytes of text")
    | {"None": None, "no text": "", "a list with no text": ["x", ""]},
    "stop_on_eos": NO_BOOL,
}
CACHE = dict.fromkeys(("block_size", "max_blocks_per_layer", "max_prefix_entries", "max_positions"), NO_SIZE)
SCHEDULER = dict.fromkeys(
    ("max_batch_size", "prefill_max_batch_size", "prefill_max_tokens", "prefill_chunk_tokens", "pack_window"),
    NO_SIZE,
)
FEW = {"None": None, "no text": "", "True": True, "another option's": "auto ", "a list": ["rebuilt"]}
BEFORE_PACKED = asdict(LADDER["10"].options) | {"batching": "packed"}
NOT_WITHOUT = {  # what the message must say
    "block_tables = 'resident' needs block_info": {"block_tables": "resident"},
    "block_tables = 'resident' needs kv_write": {"block_tables": "resident", "block_info": "mutable"},
    "layer_tables = 'shared' needs block_tables": {"layer_tables": "shared"},
    "kv_write = 'fused' needs block_tables": {"kv_write": "fused"},
    "launch = 'graph' needs kv_write": {"launch": "graph"},
    "layer_kernels = 'fused' needs kv_write": {"layer_kernels": "fused"},
    "readback = 'one_behind' needs block_tables": {"readback": "one_behind"},
    "latency = 'hidden' needs layer_kernels": {"latency": "hidden"},
    "sampler = 'searched' needs block_tables": {"sampler": "searched"},
    "batching = 'packed' needs layer_tables": {"batching": "packed"},
    "batching = 'packed' needs layer_kernels": BEFORE_PACKED | {"layer_kernels": "separate"},
    "batching = 'packed' needs readback": BEFORE_PACKED | {"readback": "at_once"},
    "prefixes = 'blocks' needs layer_tables": {"prefixes": "blocks"},
    "kv_cache_dtype = 'int8' needs batching": asdict(LADDER["12"].options) | {"kv_cache_dtype": "int8"},
    "speculation = 'ngrams' needs batching": {"speculation": "ngrams"},
    "speculation = 'ngrams' needs kv_cache_dtype": asdict(LADDER["16"].options) | {"speculation": "ngrams"},
}
CASES = [
    *arguments_of("SamplingParams", lambda _, **bad: SamplingParams(**bad), SAMPLING, RequestError),
    *arguments_of(
        "CacheConfig", lambda _, **bad: CacheConfig(**bad), CACHE | {"prefix_cache": NO_BOOL}, OptionError
    ),
    *arguments_of(
        "SchedulerConfig",
        lambda _, **bad: SchedulerConfig(**bad),
        SCHEDULER | {"decode_first": NO_BOOL, "admission_policy": NO_CHOICE},
        OptionError,
    ),
    *arguments_of(
        "EngineOptions",
        lambda _, **bad: EngineOptions(**bad),
        dict.fromkeys(EngineOptions.__dataclass_fields__, FEW) | {"attention": NO_CHOICE},
        OptionError,
    ),
    *(
        BadInput("EngineOptions", said, said, lambda _, bad=bad: EngineOptions(**bad), OptionError)
        for said, bad in NOT_WITHOUT.items()
    ),
    *values_of(OptionError, ("LADDER", "there is no rung .* as text", lambda _, bad: LADDER[bad], NO_RUNG)),
]
