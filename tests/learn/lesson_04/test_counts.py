"""Lesson 04's counts: index tensors of a step, made here and recorded on a GPU."""

import pytest

from labkit import lab, results
from labkit.kvcache import FullBatchWrite, IdentityPosWrite
from labkit.learn.lesson_04.counts import index_tensors_of, recorded_counts


@pytest.mark.parametrize(("part", "count"), [(FullBatchWrite, 3 + 3 * 6), (IdentityPosWrite, 3 + 2 * 6)])
def test_a_steps_index_tensors_are_counted(part, count):
    engine = lab.start("04").build(kv_write=part)
    assert index_tensors_of(engine) == f"index tensors in a step: {count}"
    assert not engine.has_work


def test_what_raises_is_not_counted_and_says_why():
    class Raises(FullBatchWrite):
        def write(self, *arguments):
            raise TypeError("blocks is a list")

    told = index_tensors_of(lab.start("04").build(kv_write=Raises))
    assert told.startswith(
        "index tensors in a step: not counted, because the engine raised TypeError: blocks is a list, at "
    )


def test_recorded_counts_pick_model_lengths_and_rungs():
    record = results.load("cost_cards_h100")
    table = recorded_counts(record, ["03", "04"], "random:gpt2", (20, 23), 128)
    assert list(table.columns) == ["rung 03", "rung 04"]
    assert list(table.loc["write"]) == ["generic", "identity_pos"]
    assert list(table.loc["index tensors"]) == list(table.loc["synchronizing copies"]) == [39, 27]
    equal = recorded_counts(record, ["04"], "data/tiny-gpt2", (20,), 8)
    assert equal["rung 04"][["write", "index tensors"]].tolist() == ["full_batch", 6 + 3]
