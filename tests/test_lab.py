"""The first cell of a lesson: where it runs, at what scale, and which lessons there are."""

import pytest
import torch
from bad_values import NO_RUNG, refused

from labkit import LADDER, CacheConfig, SchedulerConfig, lab
from labkit.errors import OptionError
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.lab import CPU_SCALE, GPU_SCALE, Lab
from labkit.ladder import LESSONS
from labkit.learn import kept


@pytest.mark.parametrize("number", NO_RUNG.values(), ids=NO_RUNG)
def test_what_is_no_lesson_is_refused(number, capsys):
    with refused(OptionError, "there is no lesson .*; there are 00, 01, .* 11, as text"):
        lab.start(number)
    assert capsys.readouterr().out == ""


def test_a_lesson_starts_from_the_rung_below_it():
    first, second, *_, last = (Lab(lesson, torch.device("cpu"), CPU_SCALE) for lesson in LESSONS.values())
    assert (second.below, second.rung) == (LADDER["00"], LADDER["01"])
    assert last.below is last.rung is LADDER["10"]  # the capstone adds nothing
    with pytest.raises(OptionError, match="there is no rung '-1'"):
        _ = first.below


def test_a_lesson_begins_with_where_it_runs_and_at_what_scale(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = lab.start("05")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Lesson 05: {LADDER['05'].title}"
    assert [line.split()[0] for line in printed[1:]] == ["device", "versions", "Triton", "scale"]
    assert printed[-1] == "scale    CPU: measurements use data/tiny-gpt2, batches of 1, 4, 16"
    assert (here.device, here.scale, here.rung) == (torch.device("cpu"), CPU_SCALE, LADDER["05"])


def test_with_a_gpu_a_lesson_measures_a_larger_model_there(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    here = lab.start("00")
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "device   some GPU"
    assert printed[-1] == "scale    GPU: measurements use random:gpt2, batches of 1, 8, 64"
    assert (here.device, here.scale) == (torch.device("cuda"), GPU_SCALE)


@pytest.mark.parametrize("scale", [CPU_SCALE, GPU_SCALE], ids=lambda scale: scale.name)
def test_text_comes_from_the_trained_model_and_measurements_from_that_of_the_scale(monkeypatch, scale):
    monkeypatch.setattr(lab, "load_model", lambda name: f"loaded {name}")
    here = Lab(LESSONS["00"], torch.device("cpu"), scale)
    assert here.trained_model() == "loaded data/tiny-gpt2"
    assert here.measured_model() == f"loaded {scale.model}"


# --- a part of the reader's ----------------------------------------------------------------------------


class Mine(RebuiltBlockTables):
    """A likeness of the rung below's part."""

    def fill(self, block_tables_cpu, sessions):
        super().fill(block_tables_cpu, sessions)


@pytest.fixture(scope="module")
def here():
    return lab.start("01")


def test_an_engine_is_built_with_a_part_of_the_readers(here, tiny):
    engine = here.build(block_tables=Mine, cache=CacheConfig(block_size=8), scheduler=SchedulerConfig(3))
    assert type(engine.decode_step.block_tables) is Mine and engine.options == here.rung.options
    assert (engine.kv_manager.block_size, engine.scheduler.config.max_batch_size) == (8, 3)
    assert engine.model.name == tiny.name and engine.device == here.device
    assert type(here.build().decode_step.block_tables) is CachedBlockTables


@pytest.mark.slow
def test_a_card_has_the_rung_below_the_readers_engine_and_the_packages(here):
    card = here.card(batch_size=2, block_tables=Mine)
    assert list(card) == ["the rung below", "yours", "the package's"]
    tensors = card.loc["index tensors constructed"].tolist()
    assert tensors[0] == tensors[1] == tensors[2] + here.trained_model().config.num_layers


def test_the_three_engines_are_measured(here):
    measured = here.measure(batch_size=2, rounds=1, block_tables=Mine)
    assert list(measured.seconds) == ["the rung below", "yours", "the package's"]
    assert measured.batch_size == 2 and all(len(runs) == 2 for runs in measured.seconds.values())


def test_parts_are_kept_by_lesson_and_option(here, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MINE", tmp_path / "mine")
    assert here.kept() == []
    (part,) = here.keep(block_tables=Mine)
    assert (part.lesson, part.option, part.path.name) == ("01", "block_tables", "lesson_01_block_tables.py")
    assert here.kept() == [part] and "class Mine(RebuiltBlockTables):" in part.source
