"""From logits to a token: greedy, temperature, top-k, top-p and min-p, on the host and on the device."""

from labkit.engine.sampling.device import sample_any, sample_greedy
from labkit.engine.sampling.host import sample, uniform_number, warped_probabilities
from labkit.engine.sampling.logprobs import (
    RowLogprobs,
    ScoredToken,
    TokenLogprobs,
    logprobs_asked,
    logprobs_of,
)
from labkit.engine.sampling.params import EITHER_WAY, Draws, SamplingParams

MADE_HERE = [
    name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)
]
__all__ = ["EITHER_WAY", *MADE_HERE]
