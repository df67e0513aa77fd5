"""A request from arrival to completion."""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.checks import QUOTED
from labkit.engine.drafting import DraftBalance, SeenPairs
from labkit.engine.sampling import (
    RowLogprobs,
    SamplingParams,
    TokenLogprobs,
    logprobs_asked,
    logprobs_of,
    sample,
    uniform_number,
)
from labkit.engine.session import InferenceSession
from labkit.engine.text_decoder import TextDecoder, text_before
from labkit.kernels import SamplingState
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.model.tokenizer import Tokenizer


class FinishReason(StrEnum):
    """Why a request has ended."""

    STOP = "stop"  # the model ended the text, or a stop string did
    LENGTH = "length"  # max_new_tokens were made
    CANCELLED = "cancelled"
    ERROR = "error"  # see Completion.error


class Timing(NamedTuple):
    """The moments of a request's life, in seconds of time.perf_counter().

    arrived: when it was handed to the engine. admitted: when its first prefill began; None if none did.
    tokens: when each token was ready.
    """

    arrived: float
    admitted: float | None
    tokens: tuple[float, ...]

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token, waiting in the queue included; None without a token."""
        return self.tokens[0] - self.arrived if self.tokens else None

    @property
    def itl(self) -> float | None:
        """Seconds between two tokens, on average; None with fewer than two."""
        gaps = len(self.tokens) - 1
        return (self.tokens[-1] - self.tokens[0]) / gaps if gaps > 0 else None


@dataclass(frozen=True)
class Completion:
    """The outcome of a request. `token_ids` and `text` are what was generated, without the prompt.

    token_ids: all of them, those of a stop string, too.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timing: Timing
    tokenizer: Tokenizer = field(repr=False, compare=False)
    error: str | None = None
    stop: Sequence[str] = ()

    @cached_property
    def text(self) -> str:
        """The generated text up to a stop string, decoded when it is first asked for."""
        # Not in the step that ends the request: when many end in it, all tokens are handed out sooner.
        return text_before(self.tokenizer.decode(self.token_ids), self.stop)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of each token, as `SamplingParams.logprobs` asked for; () if it did not."""
        return logprobs_of(self.token_ids)

    def __repr__(self) -> str:
        num_tokens, text = len(self.token_ids), self.text
        times = {"TTFT": self.timing.ttft, "ITL": self.timing.itl}
        said = [
            repr(text if len(text) <= QUOTED else f"{text[:QUOTED]}..."),
            f"{num_tokens} token{'s' * (num_tokens != 1)}",
            str(self.finish_reason),
            *(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in times.items() if seconds is not None),
            *([self.error] if self.error else []),
        ]
        return f"Completion({', '.join(said)})"


class Chunk(NamedTuple):
    """A piece of a stream: whole characters only. `completion` comes with the last piece."""

    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of each token, as `SamplingParams.logprobs` asked for; () if it did not."""
        return logprobs_of(self.token_ids)


class StepOutput(NamedTuple):
    """A token of a request, or its end without one. `completion` is None but for the last."""

    request_id: int
    token_id: int | None
    completion: Completion | None


@dataclass(eq=False)
class Request:
    """A request from its arrival to its end: what was asked for, and what was generated so far.

    What it has in the KV cache while it runs is an `InferenceSession`: see `OnlineScheduler.running`.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    output_token_ids: list[int] = field(default_factory=list)
    completion: Completion | None = None
    times_passed_over: int = 0  # by "pack" admission
    arrived: float = field(default_factory=time.perf_counter)
    admitted: float | None = None
    # When its tokens were ready. Those who decode together share a list, which may go on after a later one.
    time_lists: list[list[float]] = field(default_factory=list)
    decoder: TextDecoder | None = None  # of a request that has stop strings
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.seed = random.getrandbits(64) if self.params.seed is None else self.params.seed

    @cached_property
    def draft_balance(self) -> DraftBalance:
        """When it drafts (rung 17)."""
        return DraftBalance()

    @cached_property
    def seen_pairs(self) -> SeenPairs:
        """What of its text stood before (rung 17)."""
        return SeenPairs()

    def next_uniform(self) -> float:
        """The random number in [0, 1) that decides the next token."""
        return uniform_number(self.seed, len(self.output_token_ids))

    @property
    def sampling_state(self) -> SamplingState:
        """What its next token is sampled with."""
        return self.params.state(self.seed, len(self.output_token_ids))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and output: what a prefill computes, the first time and after a preemption."""
        if not self.output_token_ids:
            return self.prompt_token_ids
        if self.params.logprobs is None:
            return (*self.prompt_token_ids, *self.output_token_ids)
        # Without what they have with them: prefixes are kept when the request has gone.
        return (*self.prompt_token_ids, *map(int, self.output_token_ids))

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def complete(self, reason: FinishReason, tokenizer: Tokenizer, error: str | None = None) -> Completion:
        """End the request: make its completion from what was generated so far, keep it and return it."""
        times = sorted(chain.from_iterable(self.time_lists))
        self.completion = Completion(
            self.request_id,
            self.prompt_token_ids,
            tuple(self.output_token_ids),
            reason,
            Timing(self.arrived, self.admitted, tuple(times)),
            tokenizer,
            error,
            self.params.stop,
        )
        return self.completion


# The running requests, each with its session, in order of admission.
RunningRequests = Mapping[Request, InferenceSession]


def sample_requests(requests: Collection[Request], logits: Tensor) -> list[int | None]:
    """The next token id of each request from its row of logits [B, V]; None where they are not finite."""
    # A greedy request draws no random number.
    uniforms = [0.0 if r.params.is_greedy else r.next_uniform() for r in requests]
    params = [r.params for r in requests]
    token_ids = sample(logits, params, uniforms)
    if not (asked := logprobs_asked(params)):
        return token_ids
    numbers = [NO_TOKEN if token_id is None else token_id for token_id in token_ids]
    logprobs = RowLogprobs(logits, torch.tensor(numbers, device=logits.device), asked)
    return [None if token_id < 0 else token_id for token_id in logprobs.with_tokens(numbers)]
