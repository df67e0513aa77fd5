"""labkit: a slow but honest paged-attention engine for GPT-2, and the steps that make it fast."""

from labkit.engine import (
    CacheConfig,
    Completion,
    FinishReason,
    InferenceEngine,
    SamplingParams,
    SchedulerConfig,
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
    "load_model",
]
