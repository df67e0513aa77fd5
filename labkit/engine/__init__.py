"""Requests in, tokens out."""

from labkit.engine.config import CacheConfig, SchedulerConfig
from labkit.engine.delivery import StepOutputs
from labkit.engine.engine import InferenceEngine
from labkit.engine.request import Chunk, Completion, FinishReason, StepOutput, Timing
from labkit.engine.sampling import SamplingParams, TokenLogprobs
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.session import InferenceSession
from labkit.engine.stats import EngineStats
from labkit.engine.streaming import AsyncTokenStream, StreamingServer, TokenStream
from labkit.errors import OverloadedError, StreamError

__all__ = [name for name, value in globals().items() if isinstance(value, type)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
