"""From logits to a token: greedy, temperature, top-k, top-p and min-p, on the host and on the device."""

from labkit.engine.sampling.logprobs import (
    RowLogprobs,
    ScoredToken,
    TokenLogprobs,
    logprobs_asked,
    logprobs_of,
)
from labkit.engine.sampling.params import EITHER_WAY, Draws, SamplingParams
from labkit.engine.sampling.tokens import (
    sample,
    sample_any,
    sample_greedy,
    uniform_number,
    warped_probabilities,
)

MADE_HERE = [
    name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)
]
__all__ = ["EITHER_WAY", *MADE_HERE]
