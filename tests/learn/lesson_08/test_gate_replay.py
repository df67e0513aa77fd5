"""Lesson 08's first step: a replay that leaves results elsewhere is refused with the place."""

import pytest
import torch

from labkit.learn import not_attempted
from labkit.learn.lesson_08.gate import check_replay
from labkit.watch import LaunchRecorder, ToyGraph


class RunsOnly(LaunchRecorder):
    def replay(self):
        for launch in self.launches:
            launch.run()


class CopiesEverything(LaunchRecorder):
    def replay(self):
        for launch in self.launches:
            for output, made in zip(launch.outputs, launch.run(), strict=True):
                output.copy_(made)


class TheFirstOutputAlone(LaunchRecorder):
    def replay(self):
        for launch in self.launches:
            for output, made in list(zip(launch.outputs, launch.run(), strict=True))[:1]:
                output.copy_(made)


class SetsTheData(LaunchRecorder):
    def replay(self):
        for launch in self.launches:
            for output, made in zip(launch.outputs, launch.run(), strict=True):
                output.data = made


class RunsTwice(LaunchRecorder):
    """The skeleton's line still stands below the copies."""

    def replay(self):
        for launch in self.launches:
            for output, made in zip(launch.outputs, launch.run(), strict=True):
                if output.data_ptr() != made.data_ptr():
                    output.copy_(made)
            launch.run()


class LeavesOutViews(LaunchRecorder):
    """What only looks at memory in another way need not run again."""

    def replay(self):
        for launch in self.launches:
            memory = {tensor.data_ptr() for tensor in launch.inputs if isinstance(tensor, torch.Tensor)}
            is_view = launch.name.endswith((".view", ".slice", ".expand")) and all(
                output.data_ptr() in memory for output in launch.outputs
            )
            if not is_view:
                for output, made in zip(launch.outputs, launch.run(), strict=True):
                    if output.data_ptr() != made.data_ptr():
                        output.copy_(made)


class Nothing(LaunchRecorder):
    def replay(self):
        pass


class Unwritten(LaunchRecorder):
    def replay(self):
        not_attempted()


LIES = "what a launch makes lies where the capture left it: after replay 1, launch {} has {} at place"
WRONG = {
    RunsOnly: LIES.format("1 (index)", -1),
    TheFirstOutputAlone: " of its output 1 of 2, expected ",
    Nothing: "Run each launch once, in order, and copy what it returns to the tensors in its `outputs`",
    RunsTwice: "a replay runs each launch once: launch 0 (slice) ran 8 times in 4 replays.",
    SetsTheData: "launch 1 (index) has its output at another address now. A name is not an address",
    LaunchRecorder: "object has no attribute 'replay'",
    Unwritten: "replay: not attempted yet.",
}


@pytest.mark.parametrize("graph", WRONG, ids=lambda graph: graph.__name__)
def test_a_wrong_replay_is_refused_with_the_launch_and_the_place(graph):
    report = check_replay(graph)
    assert not report.ok and WRONG[graph] in report.text, report


@pytest.mark.parametrize("graph", [ToyGraph, CopiesEverything, LeavesOutViews])
def test_a_replay_that_brings_results_to_their_addresses_is_right(graph):
    report = check_replay(graph)
    assert report.ok and report.text.startswith("replay: right. 4 replays gave two requests the tokens [[")
