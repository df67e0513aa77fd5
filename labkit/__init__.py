"""labkit: a slow but honest paged-attention engine, and the steps that make it fast.

import labkit

engine = labkit.InferenceEngine(labkit.load_model("data/tiny-gpt2"))
print(engine.generate("To be, or", labkit.SamplingParams(max_new_tokens=16))[0].text)
"""

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.engine import (
        CacheConfig,
        Completion,
        FinishReason,
        InferenceEngine,
        SamplingParams,
        SchedulerConfig,
        StreamingServer,
    )
    from labkit.ladder import LADDER
    from labkit.model import LanguageModel, load_model
    from labkit.options import EngineOptions

__all__ = [
    "LADDER",
    "CacheConfig",
    "Completion",
    "EngineOptions",
    "FinishReason",
    "InferenceEngine",
    "LanguageModel",
    "SamplingParams",
    "SchedulerConfig",
    "StreamingServer",
    "load_model",
]

__version__ = "0.1.0"

with contextlib.suppress(Exception):  # torch may be missing; an error comes back when a name below is used
    importlib.import_module("labkit.kernels.triton_runtime")  # now, before anything else imports Triton

HOMES = {"LADDER": "ladder", "EngineOptions": "options", "LanguageModel": "model", "load_model": "model"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `labkit.doctor` must start where torch does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"labkit.{HOMES.get(name, 'engine')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
