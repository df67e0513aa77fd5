"""Lesson 04: what its cells compute, and its two figures."""

import shlex

import nbformat
import pytest
import torch
from helpers import make_engine, small_model

from labkit import SamplingParams, kernels, results
from labkit.kernels.triton_runtime import TritonUnavailableError
from labkit.kvcache import IdentityPosWrite
from labkit.ladder import LADDER, LESSONS
from labkit.learn import lesson_04 as lesson
from labkit.paths import ROOT
from labkit.show.positions import WRITE_COLOURS

CPU = torch.device("cpu")
BELOW, RUNG = LADDER["03"].options, LADDER["04"].options


def watched(lengths, options=RUNG, **settings):
    return lesson.watch_positions(small_model(), options, CPU, lengths, **settings)


# --- positions -----------------------------------------------------------------------------------------


def test_a_distance_between_two_requests_never_changes():
    run = watched((3, 4, 6))
    assert len(run.steps) == 24 and run.num_equal == 0
    for step in run.steps:
        first, second, third = step.slots.values()
        assert ((second - first) % 8, (third - first) % 8) == (1, 3)
    assert [step.slots[0] for step in run.steps] == [t % 8 for t in range(3, 27)]


@pytest.mark.parametrize(
    ("lengths", "options", "path", "num_equal"),
    [
        ((3, 3), BELOW, "full_batch", 24),
        ((3, 3), RUNG, "full_batch", 24),
        ((3, 6), BELOW, "generic", 0),
        ((3, 6), RUNG, "identity_pos", 0),
        ((3, 11), RUNG, "full_batch", 24),  # a whole block apart
        ((3, 6), LADDER["02"].options, "indexed", 0),
    ],
)
def test_positions_decide_about_the_write(lengths, options, path, num_equal):
    run = watched(lengths, options)
    assert {step.path for step in run.steps} == {path}
    assert run.num_equal == num_equal


def test_a_late_request_ends_full_batch():
    run = watched((3, 3), late_lengths=(3,))
    assert [step.path for step in run.steps] == ["full_batch"] * 5 + ["identity_pos"] * 19
    assert [len(step.slots) for step in run.steps] == [2] * 5 + [3] * 19
    assert [step.are_equal for step in run.steps] == [True] * 5 + [False] * 19


def test_every_write_of_the_engine_has_a_colour():
    assert set(lesson.FORMS) | {"indexed"} == set(WRITE_COLOURS)


# --- the write and its kernels -------------------------------------------------------------------------


def test_dispatch_table_says_what_each_rung_does():
    table = lesson.dispatch_table(CPU)
    one, two, three = "{}, 1 index tensor", "{}, 2 index tensors", "{}, 3 index tensors"
    assert list(table["rung 02"]) == [three.format("indexed")] * 4
    assert list(table["rung 03"]) == [one.format("full_batch")] + [three.format("generic")] * 3
    assert list(table["rung 04"])[:2] == [one.format("full_batch"), two.format("identity_pos")]
    assert list(table["rung 04"])[2:] == [three.format("generic")] * 2
    assert list(table.index) == [("yes", "yes"), ("yes", "no"), ("no", "yes"), ("no", "no")]


EXPECTED = [["True", "True", "True"], ["True", "True", "True"], ["True", "-", "True"], ["True", "-", "-"]]


@pytest.mark.slow
def test_kernels_agree_with_indexed_assignment_at_both_ends_of_a_block():
    assert lesson.kernel_agreement(CPU).values.tolist() == EXPECTED
    slots = {slot for _, pos in lesson.SCENES.values() for slot in pos}
    assert {0, lesson.BLOCK_SIZE - 1} <= slots


def test_without_triton_the_plain_twins_are_compared(monkeypatch):
    def refuse(device):
        raise TritonUnavailableError("Triton is not installed")

    monkeypatch.setattr(lesson, "check_launchable", refuse)
    said, forms = lesson.three_forms(CPU)
    assert said == "the kernels' plain twins, because Triton is not installed"
    assert forms["identity_pos"] is kernels.kv_append_identity_pos_plain
    assert lesson.kernel_agreement(CPU).values.tolist() == EXPECTED


def turned_around(k_cache, v_cache, key_new, value_new, block_idx, pos):
    kernels.kv_append_identity_pos_plain(k_cache, v_cache, key_new.flip(0), value_new.flip(0), block_idx, pos)


def writes_one_slot_more(k_cache, v_cache, key_new, value_new, block_idx, pos):
    kernels.kv_append_identity_pos_plain(k_cache, v_cache, key_new, value_new, block_idx, pos)
    v_cache[block_idx.long()[0], 0, (pos[0] + 1) % lesson.BLOCK_SIZE, 0] += 1


def forgets_the_values(k_cache, v_cache, key_new, value_new, block_idx, pos):
    kernels.kv_append_identity_pos_plain(k_cache, v_cache.clone(), key_new, value_new, block_idx, pos)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [turned_around, writes_one_slot_more, forgets_the_values])
def test_a_broken_kernel_does_not_agree(monkeypatch, broken):
    forms = lesson.three_forms(CPU)[1] | {"identity_pos": broken}
    monkeypatch.setattr(lesson, "three_forms", lambda device: ("", forms))
    table = lesson.kernel_agreement(CPU)
    assert list(table["identity_pos"]) == ["False", "False", "False", "-"]
    assert set(table["generic"]) == {"True"}


def test_rows_in_another_order_go_unnoticed_by_the_books():
    """What the lesson shows: no error, other tokens."""

    class TurnedAround(IdentityPosWrite):
        def write(self, k_cache_layer, v_cache_layer, key_new, value_new, *indices):
            return super().write(k_cache_layer, v_cache_layer, key_new.flip(0), value_new.flip(0), *indices)

    made = []
    for kind in (IdentityPosWrite, TurnedAround):
        engine = make_engine(options=RUNG)
        engine.kv_manager.kv_write = kind(CPU)
        outputs = engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=16, stop_on_eos=False))
        made.append([output.token_ids for output in outputs])
        engine.check_integrity()
    assert made[0] != made[1]


# --- what was counted and published --------------------------------------------------------------------


def test_recorded_counts_pick_model_lengths_and_rungs():
    record = results.load("cost_cards_h100")
    table = lesson.recorded_counts(record, ["03", "04"], "random:gpt2", (20, 23), 128)
    assert list(table.columns) == ["rung 03", "rung 04"]
    assert list(table.loc["write"]) == ["generic", "identity_pos"]
    assert list(table.loc["index tensors"]) == list(table.loc["synchronizing copies"]) == [39, 27]
    equal = lesson.recorded_counts(record, ["04"], "data/tiny-gpt2", (20,), 8)
    assert equal["rung 04"][["write", "index tensors"]].tolist() == ["full_batch", 6 + 3]


def test_the_published_command_is_read_by_this_parser():
    said = lesson.parsed(results.headline("04")["command"])
    assert said["prompt_repeats"] == (1, 4) and said["max_batch_size"] == 128 and said["repeat_runs"] == 3
    assert said["tokenize_workers"] == said["submit_interval_ms"] == 0
    assert not {"rung", "run", "json"} & said.keys()
    with pytest.raises(SystemExit):
        lesson.parsed("streaming --no-such-flag")


@pytest.mark.parametrize(
    ("before", "after", "as_far", "ways"),
    [
        ((1, 2, 3), (4, 5, 6), 2, 20),  # these labels, and all of them swapped
        ((4, 5, 6), (1, 2, 3), 2, 20),
        ((1, 6), (3, 4), 6, 6),  # equal means: every way sets them as far apart
        ((1.0,), (1.1, 1.2), 2, 3),  # a single run before: it could also be the highest
        ((1, 1, 1), (1, 1, 1), 20, 20),
    ],
)
def test_relabelled_counts_the_ways(before, after, as_far, ways):
    assert lesson.relabelled(before, after) == (as_far, ways)


def test_relabelled_does_not_depend_on_the_order_of_runs():
    published = results.headline("04")
    counted = lesson.relabelled(published["before_runs"], published["after_runs"])
    assert counted == lesson.relabelled(sorted(published["before_runs"]), sorted(published["after_runs"]))
    assert counted == lesson.relabelled(published["after_runs"], published["before_runs"]) == (4, 20)


def test_spread_is_relative_and_pooled():
    assert lesson.spread((9, 10, 11)) == pytest.approx(0.1)
    assert lesson.spread((9, 10, 11), (90, 100, 110)) == pytest.approx(0.1)
    assert lesson.spread((10, 10), (9, 10, 11)) == pytest.approx(0.1 / 2**0.5)


@pytest.mark.slow
def test_more_runs_detect_more_and_nothing_is_rarely_found():
    assert lesson.detected(8, 0.01, 0.2) == 1.0
    assert lesson.detected(8, 0.01, -0.2) == 1.0
    few, many = (lesson.detected(runs, 0.01, 0.015, experiments=20) for runs in (4, 32))
    assert few < many
    assert lesson.detected(16, 0.01, 0.0, experiments=20) <= 0.1
    assert lesson.detected(8, 0.01, 0.01, experiments=10) == lesson.detected(8, 0.01, 0.01, experiments=10)


def notebook_text():
    path = ROOT / "notebooks" / LESSONS["04"].notebook
    return "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"
    )


def test_the_lesson_explains_every_flag_of_the_write_up():
    rows = [line.split("|")[1] for line in notebook_text().splitlines() if line.startswith("| `")]
    for flag in shlex.split(results.headline("04")["command"]):
        assert not flag.startswith("--") or any(f"`{flag}" in row for row in rows), flag


def test_the_commands_of_the_lesson_are_read_by_this_parser():
    text = notebook_text().replace("\\\n", " ")
    commands = [line for line in text.splitlines() if "python -m labkit.bench" in line and "|" not in line]
    assert commands
    for command in commands:
        said = lesson.parsed(command.split("labkit.bench ")[1])
        published = lesson.parsed(results.headline("04")["command"])
        assert said == published | {"model": "random:gpt2"}
