"""Two engines at once, each with a thread of its own: nothing that one does changes the other's tokens."""

import threading

import pytest
import torch
from devices import CPU, CUDA
from helpers import GREEDY, SEEDED, engines_by_day, make_engine, tokens_of
from streaming_helpers import TIMEOUT, start

from labkit import InferenceEngine, SamplingParams
from labkit.options import EngineOptions

pytestmark = pytest.mark.slow

devices = pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=pytest.mark.cuda)], ids=str)
# One's prompts begin with the other's, and are not the same.
PROMPTS = [[(1, 2, 3), (5, 6), (1, 2, 3, 4, 5)], [(1, 2, 3, 9), (5, 6), (8,)]]
EACH_PARAMS = [GREEDY, SEEDED, SamplingParams(24)]


def engine_of(options: EngineOptions, device: torch.device) -> InferenceEngine:
    """Both have the same weights: the very same tensors."""
    return make_engine(options=options, device=device, max_blocks_per_layer=12, max_batch_size=3)


def alone(options: EngineOptions, device: torch.device) -> list[list[tuple[int, ...]]]:
    """What each of the two gives when the other one does nothing."""
    return [tokens_of(engine_of(options, device).generate(prompts, EACH_PARAMS)) for prompts in PROMPTS]


@devices
@engines_by_day
def test_two_engines_in_two_threads_give_the_tokens_that_each_gives_alone(options, device):
    expected, both_are_there = alone(options, device), threading.Barrier(2)
    engines = [engine_of(options, device) for _ in PROMPTS]

    def generate(which):
        both_are_there.wait(TIMEOUT)
        return [tokens_of(engines[which].generate(PROMPTS[which], EACH_PARAMS)) for _ in range(4)]

    generating = [start(generate, which) for which in range(2)]
    assert [each.result(TIMEOUT) for each in generating] == [[tokens] * 4 for tokens in expected]
    for engine in engines:
        engine.check_integrity()
