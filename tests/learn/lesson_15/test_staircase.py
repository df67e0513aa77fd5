"""Lesson 15's staircase: which rungs and parts the clock sees, and all engines in turn."""

import pytest
import torch

from labkit.kvcache import CachedBlockTables, IdentityPosWrite, OneTableBlockManager
from labkit.learn.assembly import Assembly
from labkit.learn.lesson_15 import staircase
from labkit.learn.lesson_15.staircase import Staircase, measure_staircase, timed_parts, timed_rungs

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Made(Assembly):
    """An assembly of parts that are there already, on all rungs from a number on."""

    def parts_on(self, number):
        return {option: part for option, (first, part) in PARTS.items() if first == number}


PARTS = {
    "block_tables": ("01", CachedBlockTables),
    "kv_write": ("04", IdentityPosWrite),
    "layer_tables": ("07", OneTableBlockManager),
    "launch": ("10", None),
    "layer_kernels": ("10", None),
}


def test_what_a_step_without_a_model_cannot_show_is_not_timed():
    assert timed_rungs(CPU) == ["00", "01", "02", "03", "04", "05", "06", "07", "10"]
    assert timed_rungs(GPU) == ["00", "01", "02", "03", "04", "05", "06", "07", "08", "10"]
    mine = Made(())
    assert list(timed_parts(mine, "01", CPU)) == ["block_tables"]
    assert timed_parts(mine, "10", CPU) == timed_parts(mine, "10", GPU) == {}
    assert timed_parts(mine, "04", CPU) == {}  # a kernel of the reader's would be interpreted
    assert list(timed_parts(mine, "04", GPU)) == ["kv_write"]


@pytest.mark.slow
def test_all_rungs_run_in_turn_with_the_readers_where_there_is_one():
    stairs = measure_staircase(Made(()), CPU, batch_size=2, rounds=1)
    assert list(stairs.package) == timed_rungs(CPU) and list(stairs.yours) == ["01", "07"]
    assert all(len(runs) == 2 and min(runs) > 0 for runs in stairs.package.values())


def test_the_gain_is_between_the_first_and_the_last():
    stairs = Staircase(2, {"00": (8.0,) * 4, "05": (4.0,) * 4, "10": (1.0,) * 4}, {"05": (2.0,) * 4})
    assert stairs.gain == pytest.approx(8)
    assert stairs.between("00", "05").verdict == "faster"
    assert staircase.NUM_STEPS <= 40


@pytest.mark.cuda
def test_on_a_gpu_the_graphs_have_a_step_of_their_own():
    stairs = measure_staircase(Assembly(()), GPU, batch_size=2, rounds=1)
    assert list(stairs.package) == timed_rungs(GPU) and "08" in stairs.package
