"""Lesson 08's gate: steps that are replayed pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
from gate_tests import gate_tests

from labkit.learn import not_attempted
from labkit.learn.lesson_08.graphs import ToyGraphedStep
from labkit.watch import capture

pytestmark = pytest.mark.slow


class Graphs:
    """A graph per batch size, greedy and not; all are captured here."""

    def __init__(self, device_step):
        self.device_step, self.slots = device_step, device_step.slots
        self.max_batch_size = len(self.slots.slot_mapping)
        self.graphs = {key: self.captured(*key) for size in self.sizes() for key in self.kinds(size)}

    def sizes(self):
        return range(1, self.max_batch_size + 1)

    def kinds(self, size):
        return (size, False), (size, True)

    def captured(self, size, is_greedy):
        return capture(self.device_step, size, is_greedy)

    def size_for(self, batch_size):
        return min(size for size, _ in self.graphs if size >= batch_size)

    def __call__(self, batch_size, max_context_len, is_greedy):
        graph, token_ids = self.graphs[self.size_for(batch_size), is_greedy]
        graph.replay()
        return token_ids[:batch_size]


class PowersOfTwo(Graphs):
    def sizes(self):
        return [2**i for i in range(10) if 2**i < self.max_batch_size] + [self.max_batch_size]


class BucketBelow(PowersOfTwo):
    def size_for(self, batch_size):
        return max(size for size, _ in self.graphs if size <= batch_size)


class LargestForAll(PowersOfTwo):
    def size_for(self, batch_size):
        return self.max_batch_size


class OneSizeForAll(Graphs):
    """Right, if wasteful: what sizes cost is asked of `sizes_for`."""

    def sizes(self):
        return [self.max_batch_size]


class OneRowForAll(PowersOfTwo):
    def sizes(self):
        return [1]

    def size_for(self, batch_size):
        return 1


class GreedyForAll(PowersOfTwo):
    def __call__(self, batch_size, max_context_len, is_greedy):
        return super().__call__(batch_size, max_context_len, True)


class CapturedWhenMet(PowersOfTwo):
    def sizes(self):
        return []

    def __call__(self, batch_size, max_context_len, is_greedy):
        if (batch_size, is_greedy) not in self.graphs:
            self.graphs[batch_size, is_greedy] = self.captured(batch_size, is_greedy)
        graph, token_ids = self.graphs[batch_size, is_greedy]
        graph.replay()
        return token_ids


class PaddedInANewTensor(PowersOfTwo):
    def __call__(self, batch_size, max_context_len, is_greedy):
        padding = torch.full((self.max_batch_size - batch_size,), self.slots.padding_slot)
        self.slots.slot_mapping = torch.cat([self.slots.slot_mapping[:batch_size], padding])
        return super().__call__(batch_size, max_context_len, is_greedy)


class TokensOfTheCapture(PowersOfTwo):
    """Keeps a copy of the tokens, which no replay writes to."""

    def captured(self, size, is_greedy):
        graph, token_ids = super().captured(size, is_greedy)
        return graph, token_ids.clone()


class NoGraphOfFour(PowersOfTwo):
    def sizes(self):
        return [1, 2]


class NeverReplayed(PowersOfTwo):
    def __call__(self, batch_size, max_context_len, is_greedy):
        _, token_ids = self.graphs[self.size_for(batch_size), is_greedy]
        return token_ids[:batch_size]


def unwritten(device_step):
    not_attempted()


PER_REQUEST = r"launch breaks a contract: a step makes a token per request: it made {} for a batch of {}, exp"
PADDED = r"a batch of 1 ran with {} rows, and a graph of 1 was captured\. {} rows are padding, expected 0"
WRONG = {
    BucketBelow: PER_REQUEST.format(r"\(4,\)", 5),
    LargestForAll: PADDED.format(6, 5),
    OneRowForAll: PER_REQUEST.format(r"\(1,\)", 6),
    GreedyForAll: r"row 0 of 6 \(request 6\) is token \d+, expected \d+\. .* drawn where the request draws\.",
    CapturedWhenMet: r"a step is a replay: the forward was run from Python for a \w+ batch of \d",
    PaddedInANewTensor: r"slots\.slot_mapping is a new tensor, at another address",
    TokensOfTheCapture: r"a step makes the plain step's tokens: row 0 of \d \(request \d+\) is token",
    NoGraphOfFour: r"every batch has a graph: a greedy batch of 6, in an engine for 6, raised ValueError: "
    r"min\(\).* at `return min\(size for size, _ in self\.graphs.* as many rows as the engine has slots",
    NeverReplayed: r"a step runs on the device: lengths, last tokens, keys and values are all as they were "
    r"before it\. What makes the tokens was not launched",
    unwritten: r"^launch: not attempted yet\.$",
}
RIGHT = (ToyGraphedStep, PowersOfTwo, OneSizeForAll)


test_wrong_parts, test_right_parts = gate_tests("08", "launch", WRONG, RIGHT)
