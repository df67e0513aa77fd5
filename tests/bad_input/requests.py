"""Prompts, their parameters and the ids of requests, as the engine and a server are handed them."""

import asyncio
import itertools

import numpy as np
import torch
from bad_input import values_of
from bad_values import (
    BAD_PARAMS,
    BAD_PROMPTS,
    ENDLESS,
    JUNK,
    BreaksAfterOne,
    BrokenList,
    Made,
    NeverRead,
    Uncounted,
    without,
)
from helpers import GREEDY

from labkit import SamplingParams
from labkit.errors import RequestError, StreamError

# The model has 256 tokens and 64 positions.
TOO_MUCH = {
    "no token": [],
    "no text": "",
    "an id over": [1, 256],
    "a negative id": [-1],
    "NumPy's id over": np.array([999]),
    "a bool among ids": [True],
    "None among ids": [1, None],
    "text in a list": ["To", "be"],
    "a batch of ids": [[1, 2]],
    "half a surrogate pair": "a\ud800",
    "as long as the model": [1] * 64,
}
GOOD = {"a good prompt": [1], "text": "To be"}
TOO_LONG = ENDLESS | TOO_MUCH
PROMPTS = BAD_PROMPTS | ENDLESS | TOO_MUCH
NO_PROMPTS = without(JUNK, "a list", "text") | {
    "None": None,
    "a generator of prompts": Made(lambda: ([i] for i in (1, 2))),
    "endless": Made(lambda: itertools.repeat([1])),
    "prompts by name": {"a": [1], "b": [2]},
    "a bytearray": bytearray(b"To be"),
    "a memoryview": memoryview(b"To be"),
    "ids": [1, 2, 3],
    "a 3-D tensor": torch.ones(2, 2, 2, dtype=torch.int64),
    "prompts that raise": BrokenList([[1], [2]]),
    "prompts that raise later": BreaksAfterOne([[1], [2]]),
    "a good one and a bad one": [[1], [256]],
}
NO_ID = without(JUNK, "a 0-d array") | {
    "None": None,
    "a float that equals it": 0.0,
    "a bool that equals it": False,
    "torch's bool": torch.tensor(False),
    "text of it": "0",
    "it in a tensor": torch.tensor([0]),
    "another": 1,
}
PARAMS_FOR_TWO = {
    "one": [GREEDY],
    "three": [GREEDY] * 3,
    "far more": NeverRead(),
    "one of another kind": [GREEDY, None],
    "a length that raises": Uncounted([GREEDY, GREEDY]),
    "what raises": BrokenList([GREEDY, GREEDY]),
    "the class": [SamplingParams, SamplingParams],
}


async def submit_async(server, prompt) -> None:
    server.submit_async(prompt, GREEDY)


PROMPT, PARAMS = "prompt|token id", "params must be SamplingParams|but .* SamplingParams|params cannot be"
NOT_HERE = "there is no request .* here; .*request_id is the whole"
CASES = [
    *values_of(
        RequestError,
        ("add_request", PROMPT, lambda w, bad: w.engine.add_request(bad, GREEDY), PROMPTS),
        ("generate", PROMPT, lambda w, bad: w.engine.generate([[1], bad, [2]], GREEDY), TOO_LONG),
        ("stream", PROMPT, lambda w, bad: w.engine.stream(bad, GREEDY), TOO_MUCH),
        ("submit", PROMPT, lambda w, bad: w.server.submit(bad, GREEDY), PROMPTS),
        ("submit_async", PROMPT, lambda w, bad: asyncio.run(submit_async(w.server, bad)), TOO_MUCH),
        ("generate, prompts", PROMPT, lambda w, bad: w.engine.generate(bad, GREEDY), NO_PROMPTS),
        ("generate, two", PARAMS, lambda w, bad: w.engine.generate([[1], [2]], bad), PARAMS_FOR_TWO),
        ("add_request, params", PARAMS, lambda w, bad: w.engine.add_request([1], bad), BAD_PARAMS),
        ("stream, params", PARAMS, lambda w, bad: w.engine.stream([1], bad), BAD_PARAMS),
        ("generate, params", PARAMS, lambda w, bad: w.engine.generate([[1], [2]], bad), BAD_PARAMS),
        ("submit, params", PARAMS, lambda w, bad: w.server.submit([1], bad), BAD_PARAMS),
        ("cancel", NOT_HERE, lambda w, bad: w.engine.cancel(bad), NO_ID),
    ),
    *values_of(
        StreamError,
        ("submit_async, no loop", "no event loop", lambda w, bad: w.server.submit_async(bad, GREEDY), GOOD),
    ),
]
