"""How a request wants its tokens picked, and when to stop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from labkit import checks
from labkit.checks import is_number, is_whole, names_its_arguments, repr_of_changes
from labkit.errors import RequestError
from labkit.kernels.distribution import SamplingState, as_int64

require = partial(checks.require, RequestError)
LARGEST_TOP_K = 2**31  # larger than any vocabulary
MOST_LOGPROBS = 20  # as many as OpenAI's API gives
MOST_TOKENS = "it is max_new_tokens here"


@names_its_arguments(
    RequestError,
    {
        "max_tokens": MOST_TOKENS,
        "max_completion_tokens": MOST_TOKENS,
        "max_length": f"{MOST_TOKENS}, and the prompt is not counted",
        "n": "repeat the prompt, as in generate([prompt] * n, params)",
        "stop_strings": "it is stop here",
        "stop_token_ids": "say the text that ends a request: stop=...",
        "include_stop_str_in_output": "the text ends before the stop string; token_ids has all tokens",
        "ignore_eos": "it is stop_on_eos=False here",
        "top_logprobs": "it is logprobs here: how many, or 0 for the token's own alone",
        "do_sample": "temperature=0 takes the likeliest token, and more than 0 draws one",
    },
)
@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are picked, and when it ends.

    max_new_tokens: tokens to generate at most.
    temperature: 0 takes the likeliest token; otherwise logits are divided by it.
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the likeliest tokens whose probabilities first reach p, the one that crosses it included.
    seed: the request's own stream of random numbers, the same whatever else is in the batch.
    stop_on_eos: end at a token by which the model ends a text: True or False, of Python's own type.
    min_p: keep tokens at least min_p times as likely as the likeliest one; 0 keeps all.
    stop: a string or several: a request ends when its text contains one, and the text ends before it.
    logprobs: None, or how many of the likeliest tokens, 0 to 20, each token comes with. All have their log
        probabilities: by the model's logits as they are, before temperature and filters, as is vLLM's
        default.
    Raises RequestError for a value of another type or out of range.
    """

    max_new_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_on_eos: bool = True
    min_p: float = 0.0
    stop: str | Sequence[str] = ()
    logprobs: int | None = None

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        tokens, temperature, seed, asked = self.max_new_tokens, self.temperature, self.seed, self.logprobs
        require("max_new_tokens", tokens, is_whole(tokens) and tokens >= 1, "a whole number of 1 or more")
        is_warm = is_number(temperature) and temperature >= 0
        require("temperature", temperature, is_warm, "a finite number of 0 or more")
        is_cut = is_whole(self.top_k) and self.top_k >= 0
        require("top_k", self.top_k, is_cut, "a whole number of 0 (off) or more")
        is_share = is_number(self.top_p) and 0 < self.top_p <= 1
        require("top_p", self.top_p, is_share, "above 0 and at most 1 (off)")
        is_share = is_number(self.min_p) and 0 <= self.min_p <= 1
        require("min_p", self.min_p, is_share, "a number from 0 (off) to 1")
        require("seed", seed, seed is None or is_whole(seed), "a whole number or None")
        is_few = asked is None or (is_whole(asked) and 0 <= asked <= MOST_LOGPROBS)
        require("logprobs", asked, is_few, f"a whole number from 0 to {MOST_LOGPROBS}, or None (off)")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        is_list = isinstance(stop, list | tuple) and all(isinstance(each, str) and each for each in stop)
        require("stop", self.stop, is_list, "a string or a list of strings, none of them empty")
        object.__setattr__(self, "stop", tuple(stop))  # which nobody can change later
        require("stop_on_eos", self.stop_on_eos, isinstance(self.stop_on_eos, bool), "True or False")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken, so that no random number is drawn."""
        return self.temperature == 0

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens are ruled out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def state(self, seed: int, num_drawn: int) -> SamplingState:
        """What a request of these params is sampled with after it has drawn so many random numbers."""
        return SamplingState(
            float(self.temperature),
            min(self.top_k, LARGEST_TOP_K),
            float(self.top_p),
            float(self.min_p),
            as_int64(seed),
            num_drawn,
        )


class Draws(IntEnum):
    """Whether a batch's requests draw, and from all tokens or from some: chosen once for a whole batch.

    A step that knows no difference among batches that draw takes it as a bool, `is_greedy`: NONE is true and
    equal to True, FILTERED is false and equal to False.
    """

    FILTERED = 0  # a request draws, and one has top-k, top-p or min-p
    NONE = 1  # all take the likeliest token
    PLAIN = 2  # a request draws; those that do draw from all tokens

    def __bool__(self) -> bool:
        return self is Draws.NONE

    @classmethod
    def of(cls, params: Iterable[SamplingParams]) -> "Draws":
        """What requests of these parameters ask for, together."""
        drawing = [p for p in params if not p.is_greedy]
        if not drawing:
            return cls.NONE
        return cls.FILTERED if any(p.is_filtered for p in drawing) else cls.PLAIN


EITHER_WAY = (Draws.FILTERED, Draws.NONE)  # the kinds of batches that every step can tell apart
