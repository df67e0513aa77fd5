"""Loads: what clients ask for, by name and seeded.

The write-ups' load, requests that are alike, greedy and short, hides the weak spots of an engine: rows that
draw, rows of unequal length, prompts that take longer than their answers, requests that come while others are
served, and prompts that begin alike. Lengths are those of a model of 1,024 positions; for another they are
larger or smaller in proportion.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from labkit.bench.workload import Request
from labkit.errors import OptionError
from labkit.model import ModelConfig

ALIKE = "alike"
RAGGED_PROMPT, LONGEST_PROMPT, HEAVY_PROMPT, SYSTEM_PROMPT, QUESTION = 100, 800, 512, 512, 32  # tokens
SHORT_QUESTION, LONGEST_QUESTION = 16, 64  # tokens, of those that an assistant gets
SPREAD = 1.0  # of the logarithm of ragged lengths: a third of them is beyond 0.4 to 2.7 times the median
TEMPERATURE, TOP_P = 0.8, 0.95


@dataclass(frozen=True)
class Asked:
    """What a load is made from.

    alike: the requests that the flags describe, which some loads change and others are only as many as.
    rate: arrivals per second, the mean, which the load `arrivals` needs.
    """

    alike: tuple[Request, ...]
    model: ModelConfig
    seed: int = 0
    rate: float | None = 50.0

    def length(self, tokens: int) -> int:
        """A length in tokens, of a model of 1,024 positions, for this one."""
        return max(1, tokens * self.model.max_positions // 1024)

    def numbers(self) -> random.Random:
        """The load's numbers, anew: the same for the same seed."""
        return random.Random(self.seed)

    def prompt(self, numbers: random.Random, length: int) -> tuple[int, ...]:
        """Random token ids."""
        return tuple(numbers.randrange(self.model.vocab_size) for _ in range(length))


def sampled(asked: Asked) -> tuple[Request, ...]:
    """The requests that are alike, each with temperature 0.8, top-p 0.95 and a seed of its own."""
    drawn = partial(replace, temperature=TEMPERATURE, top_p=TOP_P)
    return tuple(
        replace(request, params=drawn(request.params, seed=asked.seed + i))
        for i, request in enumerate(asked.alike)
    )


def ragged(asked: Asked) -> tuple[Request, ...]:
    """Lognormal lengths: prompts of 100 tokens in the median and 800 at most, answers of half the most new
    tokens in the median."""
    return uneven(asked, asked.numbers(), (), RAGGED_PROMPT, LONGEST_PROMPT)


def uneven(
    asked: Asked, numbers: random.Random, system: tuple[int, ...], median: int, longest: int
) -> tuple[Request, ...]:
    """The requests with prompts of lognormal length, `median` and `longest` as `Asked.length` takes them,
    behind a system prompt, and answers of half the most new tokens in the median."""
    median, longest = asked.length(median), asked.length(longest)
    requests = []
    for request in asked.alike:
        most = request.params.max_new_tokens
        prompt = system + asked.prompt(numbers, lognormal(numbers, median, longest))
        params = replace(request.params, max_new_tokens=lognormal(numbers, (most + 1) // 2, most))
        requests.append(replace(request, prompt=prompt, params=params))
    return tuple(requests)


def prompt_heavy(asked: Asked) -> tuple[Request, ...]:
    """Prompts of 512 tokens, each another."""
    numbers = asked.numbers()
    length = asked.length(HEAVY_PROMPT)
    return tuple(replace(request, prompt=asked.prompt(numbers, length)) for request in asked.alike)


def arrivals(asked: Asked) -> tuple[Request, ...]:
    """The ragged requests, which come one after another as a Poisson process of the rate asked for."""
    numbers, requests, now = random.Random(asked.seed + 1), [], 0.0
    for request in ragged(asked):
        requests.append(replace(request, arrives_at=now))
        now += numbers.expovariate(asked.rate)
    return tuple(requests)


def shared_prefix(asked: Asked) -> tuple[Request, ...]:
    """Questions of 32 tokens, each another, behind one system prompt of 512."""
    numbers = asked.numbers()
    system = asked.prompt(numbers, asked.length(SYSTEM_PROMPT))
    question = asked.length(QUESTION)
    return tuple(replace(request, prompt=system + asked.prompt(numbers, question)) for request in asked.alike)


def assistant(asked: Asked) -> tuple[Request, ...]:
    """What the users of one assistant ask: behind one system prompt of 512 tokens, questions of lognormal
    length, 16 tokens in the median and 64 at most; answers of half the most new tokens in the median."""
    numbers = asked.numbers()
    system = asked.prompt(numbers, asked.length(SYSTEM_PROMPT))
    return uneven(asked, numbers, system, SHORT_QUESTION, LONGEST_QUESTION)


LOADS: dict[str, Callable[[Asked], tuple[Request, ...]]] = {
    ALIKE: lambda asked: asked.alike,  # the write-ups': from the flags, greedy, equally many tokens, at once
    "sampled": sampled,
    "ragged": ragged,
    "prompt-heavy": prompt_heavy,
    "arrivals": arrivals,
    "shared-prefix": shared_prefix,
    "assistant": assistant,
}


def make_load(name: str, asked: Asked) -> tuple[Request, ...]:
    """The requests of a load, one for each that was asked for. Raises OptionError for a name that is not in
    LOADS."""
    if name not in LOADS:
        raise OptionError(f"there is no load {name!r}; there are {', '.join(LOADS)}")
    return LOADS[name](asked)


def lognormal(numbers: random.Random, median: int, at_most: int) -> int:
    """A random length from 1 to `at_most`, what is beyond moved to the end."""
    return min(at_most, max(1, round(numbers.lognormvariate(math.log(median), SPREAD))))
