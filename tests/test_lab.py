"""The first cell of a lesson: where it runs, at what scale, and which lessons there are."""

import pytest
import torch

from labkit import LADDER, CacheConfig, SchedulerConfig, lab, paths
from labkit.errors import OptionError
from labkit.kvcache import (
    AppendBatched,
    AppendPerToken,
    CachedBlockTables,
    FullBatchWrite,
    RebuiltBlockTables,
)
from labkit.lab import CPU_SCALE, GPU_SCALE, Lab
from labkit.ladder import FINISHED, LESSONS, PAGES
from labkit.learn import steps
from labkit.learn.progress import LessonProgress, note_gate, progress


def test_a_lesson_starts_from_the_rung_below_it():
    first, second, *_, last = (Lab(lesson, torch.device("cpu"), CPU_SCALE) for lesson in LESSONS.values())
    assert (second.below, second.rung) == (LADDER["00"], LADDER["01"])
    assert last.below is last.rung is FINISHED  # the capstone adds nothing
    with pytest.raises(OptionError, match="there is no rung '-1'"):
        _ = first.below


def test_a_lesson_begins_with_where_it_runs_and_at_what_scale(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = lab.start("05")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Lesson 05: {LADDER['05'].title}"
    assert [line.split()[0] for line in printed[1:]] == ["device", "versions", "Triton", "scale"]
    assert printed[-1] == "scale    CPU: measurements use data/tiny-gpt2, and batches of 1, 4, 16 requests"
    assert (here.device, here.scale, here.rung) == (torch.device("cpu"), CPU_SCALE, LADDER["05"])


def test_with_a_gpu_a_lesson_measures_a_larger_model_there(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    here = lab.start("00")
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "device   some GPU"
    assert printed[-1] == "scale    GPU: measurements use random:gpt2, and batches of 1, 8, 64 requests"
    assert (here.device, here.scale) == (torch.device("cuda"), GPU_SCALE)


def test_a_page_begins_with_where_it_runs_and_has_no_rung(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = lab.begin("before_00")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Before lesson 00: How a CPU drives a GPU"
    assert [line.split()[0] for line in printed[1:]] == ["device", "versions", "Triton"]
    assert (here.page, here.device) == (PAGES["before_00"], torch.device("cpu"))
    assert here.predict("How many", "kernels", guess=3).lesson == "before_00"
    assert not hasattr(here, "rung")


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


class AllZero(RebuiltBlockTables):
    """Names block 0 for every request."""

    def fill(self, block_tables_cpu, sessions):
        block_tables_cpu.zero_()


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
    assert card.index.name == "GPU: none recorded"  # of two requests
    tensors = card.loc["index tensors constructed"].tolist()
    assert tensors[0] == tensors[1] == tensors[2] + here.trained_model().config.num_layers


@pytest.mark.slow
def test_without_a_gpu_a_part_has_the_gpus_counts_of_the_engine_that_it_is_like():
    class PerToken(AppendPerToken):
        pass

    class AskingMore(AppendBatched):
        def append(self, sessions, keys, values):
            super().append(sessions, [key + 0 for key in keys], values)

    here = lab.start("02")
    for part, like in ((PerToken, "the rung below"), (AppendBatched, "the package's")):
        card = here.card(kv_append=part)
        assert card["yours"].equals(card[like]) and "GPU: kernels launched" in card.index
        assert card.index.name.startswith("GPU: recorded on NVIDIA")
    alone = here.card(kv_append=AskingMore)
    assert alone.loc["GPU: kernels launched", "yours"] == "not recorded"
    assert type(alone.loc["index tensors constructed", "yours"]) is int  # beside rows that are not there


@pytest.mark.slow
def test_a_card_and_a_measurement_can_be_of_prompts_of_differing_lengths(monkeypatch):
    here, asked = lab.start("04"), []
    tensors = [
        here.card(4, lengths, kv_write=FullBatchWrite).loc["index tensors constructed"].tolist()
        for lengths in ((20,), (20, 23))
    ]
    assert tensors == [[9, 9, 9], [21, 21, 15]]
    monkeypatch.setattr(lab, "measure_host", lambda *arguments: asked.append(arguments))
    here.measure(8, 2, lengths=(8, 11), kv_write=FullBatchWrite)
    here.measure(8, 2, kv_write=FullBatchWrite)
    assert [arguments[-1] for arguments in asked] == [(8, 11), (8,)]


@pytest.mark.slow
def test_parts_are_kept_by_lesson_and_option_and_what_the_gate_says_is_told(
    here, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    assert here.kept() == []
    (part,) = here.keep(block_tables=Mine)
    assert capsys.readouterr().out.split()[:2] == ["✓", "block_tables"]
    assert (part.lesson, part.option, part.path.name) == ("01", "block_tables", "lesson_01_block_tables.py")
    assert here.kept() == [part] and "class Mine(RebuiltBlockTables):" in part.source

    (part,) = here.keep(block_tables=AllZero)  # which is refused
    said = capsys.readouterr().out
    assert said.startswith("✗  block_tables") and "must hold   a row names the blocks" in said
    assert here.kept() == [part]


def test_progress_has_a_line_per_lesson_and_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    lab.start("01").predict("Rows", "rows", 24).score(12)
    note_gate("00", "my_gather")
    note_gate("00", "my_weights")
    note_gate("02", "kv_append")
    lab.begin("before_03").predict("Waves", "", 3).score(1)
    table = lab.progress()
    assert table["steps"].tolist()[:6] == ["", "50%", "0%", "100%", "", "0%"]
    assert [off for off in table["predictions off by"] if off] == ["×2", "×3"]


@pytest.mark.slow
def test_a_gate_is_noted_for_a_part_of_the_readers_alone(here, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    assert here.check(block_tables=CachedBlockTables).ok
    assert progress() == {}
    monkeypatch.setattr(steps, "is_written", lambda part: True)
    assert here.check(block_tables=CachedBlockTables).ok
    assert progress() == {"01": LessonProgress(("block_tables",))}
    assert here.check(block_tables=type("MyRows", (CachedBlockTables,), {})).ok
    assert progress() == {"01": LessonProgress(("block_tables", "MyRows"))}
