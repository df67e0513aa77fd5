"""Lesson 08's build steps: what says that they are done, and graphs of the machine's own kind."""

import pytest
import torch
from skeletons import filled, steps_of

from labkit import SamplingParams, SchedulerConfig, lab, paths
from labkit.learn.kept import keep
from labkit.learn.lesson_08.padding import padding_of
from labkit.learn.measured import YOURS
from labkit.paths import ROOT
from labkit.watch import device_step_of

NOTEBOOK = ROOT / "notebooks/08_cuda_graphs.ipynb"


@pytest.fixture(scope="module")
def written():
    """The notebook's names, with every gap filled."""
    return filled(NOTEBOOK).names


@pytest.mark.slow
def test_the_hints_buckets_are_the_packages(written):
    from labkit.engine.step.graphed import batch_buckets

    for largest in (1, 2, 3, 6, 9, 16, 64, 100, 128):
        assert written["MyGraphedStep"].sizes_for(largest) == batch_buckets(largest)
    told = padding_of(written["MyGraphedStep"].sizes_for)
    assert told.startswith("graphs: right. 22 ") and told.endswith(
        "padding: 14.2 % of rows on average, 43.8 % at worst"
    )


@pytest.mark.slow
def test_the_part_can_be_kept_and_measured(written, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    here = lab.start("08")
    mine = keep("08", "launch", written["MyGraphedStep"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(launch=part).ok
    assert here.measure(batch_size=2, rounds=1, launch=part).seconds[YOURS]


def test_no_step_s_lines_stand_above_it():
    """The capture on a GPU is shown before the second step, which asks for its loop."""
    replay, (captures, call), (sizes, cut) = (step.pieces for step in steps_of(NOTEBOOK))
    assert "output.copy_(made)" in replay[0]
    assert "capture(size, is_greedy)" in captures and "graph.replay()" in call
    assert "max_batch_size" in sizes and "[:batch_size]" in cut


@pytest.mark.cuda
def test_on_a_gpu_the_reader_s_part_replays_cuda_graphs_and_gains(written):
    here = lab.start("08")
    part = written["MyGraphedStep"]
    assert here.check(launch=part).text.startswith("launch: right.")
    engine = here.build(launch=part, scheduler=SchedulerConfig(max_batch_size=6))
    launched = engine.decode_step.device_step
    assert launched.graphs.keys() == {(size, greedy) for size in (1, 2, 4, 6) for greedy in (True, False)}
    assert all(isinstance(graph, torch.cuda.CUDAGraph) for graph, _ in launched.graphs.values())
    assert device_step_of(engine) is launched.device_step
    params = [SamplingParams(20, stop_on_eos=False), SamplingParams(30, temperature=0.8, seed=1)]
    prompts = ["To be, or not to be", "KING HENRY VI:\n"]
    package = here.build(scheduler=SchedulerConfig(max_batch_size=6))
    ours, theirs = ([done.token_ids for done in e.generate(prompts, params)] for e in (engine, package))
    assert ours == theirs
    assert here.measure(launch=part).compared(YOURS).verdict == "faster"
