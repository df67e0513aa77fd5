"""Lesson 08's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit import lab
from labkit.learn.lesson_08.graphs import ToyGraphedStep
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

REPLAY, GRAPHS, BUCKETS = range(3)
EACH = "        for launch in self.launches:"
OUTPUTS = "for output, made in zip(launch.outputs, launch.run()):"
COPY = "                if output.data_ptr() != made.data_ptr():\n                    output.copy_(made)"
BY_VIEWS = f"""{EACH}
            memory = {{tensor.data_ptr() for tensor in launch.inputs if hasattr(tensor, "data_ptr")}}
            is_view = launch.name.endswith((".view", ".slice", ".expand"))
            if is_view and all(output.data_ptr() in memory for output in launch.outputs):
                continue"""
CAPTURED = "self.graphs[size, is_greedy] = capture(size, is_greedy)"
COPIED = """graph, made = capture(size, is_greedy)
                    self.graphs[size, is_greedy] = graph, made.clone()"""
MET = """        with capturing(self.device_step, MyGraph) as capture:
            self.graphs[batch_size, is_greedy] = capture(batch_size, is_greedy)
        graph, token_ids ="""
NEW_TENSOR = """        slots = self.device_step.slots
        slots.slot_mapping = slots.slot_mapping.clone()
        bucket ="""
BUCKET = "next(size for size in self.sizes if size >= batch_size)"
SIZES = "return sorted({size for size in powers + halfway if size < max_batch_size} | {max_batch_size})"
MISTAKES = [
    (REPLAY, f"{OUTPUTS}\n{COPY}", "launch.run()", "launch 1 (index) has -1 at place"),
    (REPLAY, OUTPUTS, OUTPUTS.replace("zip", "[*zip").replace("):", ")][:1]:"), "of its output 1 of 2,"),
    (REPLAY, "def replay", "def play", "object has no attribute 'replay'"),
    (REPLAY, COPY, "                output.copy_(made)", ""),
    (REPLAY, EACH, BY_VIEWS, ""),
    (GRAPHS, "self.graphs[batch_size, is_greedy]", "self.graphs[1, is_greedy]", "it made (1,) for a batch"),
    (GRAPHS, "self.graphs[batch_size, is_greedy]", "self.graphs[batch_size, True]", "drawn where the"),
    (GRAPHS, "        graph, token_ids =", MET, "the forward was run from Python for a"),
    (GRAPHS, CAPTURED, COPIED, "a step makes the plain step's tokens found row 0 of"),
    (GRAPHS, "        graph.replay()\n", "", "What makes the tokens was not launched"),
    (BUCKETS, BUCKET, "max(size for size in self.sizes if size <= batch_size)", "it made (4,) for a batch"),
    (BUCKETS, BUCKET, "self.sizes[-1]", "a graph of 1 was captured. try Of the sizes"),
    (BUCKETS, " | {max_batch_size}", "", "as many rows as the engine has slots"),
    (BUCKETS, "        bucket =", NEW_TENSOR, "slots.slot_mapping is a new tensor, at another address"),
    (BUCKETS, " if size < max_batch_size", "", "16, 20, 24], whose largest is 24, expected 20."),
    (BUCKETS, SIZES, "return [max_batch_size]", ""),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "08_cuda_graphs.ipynb", MISTAKES
)


def test_the_toys_graphs_pass():
    assert lab.start("08").check(launch=ToyGraphedStep).ok
