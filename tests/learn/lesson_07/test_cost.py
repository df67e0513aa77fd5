"""Lesson 07: cost cards, host time and recorded runs."""

import pytest
from made_records import card_of, card_record, run_of, runs_record

from labkit.learn.lesson_07.cost import ladder_table, recorded_cards, savings, step_parts
from labkit.results import HostTime


def host_time(batch_size=8, steps=8, step=10e-6, follow=2e-6, reserve=3e-6):
    return HostTime(batch_size, 12, (step,) * steps, (follow,) * steps, (reserve,) * steps)


def test_recorded_cards_are_gpt2_s_at_differing_positions():
    record = card_record(
        [
            ("07", 8, "random:gpt2", (20, 23), card_of(70)),
            ("06", 8, "random:gpt2", (20, 23), card_of(60)),
            ("06", 8, "random:gpt2", (20, 20), card_of(1)),
            ("06", 8, "data/tiny-gpt2", (20, 23), card_of(1)),
            ("05", 8, "random:gpt2", (20, 23), card_of(1)),
        ]
    )
    table = recorded_cards(record, ("06", "07"), (8,))
    assert list(table.columns) == [("B = 8", "rung 06"), ("B = 8", "rung 07")]
    assert table.loc["GPU: kernels launched"].tolist() == [60, 70]
    assert len(table) == 6


def test_a_step_s_parts_add_up():
    parts = step_parts(host_time())
    assert parts == pytest.approx({"reserve": 3, "tell the device": 2, "launch and the rest": 5})


def test_the_table_of_the_ladder_says_what_the_comparison_says():
    def ran(rung, seconds):
        return rung, run_of(seconds, decoded_tokens=1000, append_paths={"fused": 1})

    sides = [ran("06", 2.0), ran("07", 1.0), ran("07", 1.0), ran("06", 2.0)]
    record = runs_record(sides * 2, limit_seconds=0.1)
    (row,) = ladder_table({"a": record}, "06", "07").to_dict("records")
    assert list(row.values()) == ["500", "1,000", "10.0 %", "×2.000", "[2.000, 2.000]", "faster"]


def test_what_is_saved_adds_up():
    before, after = host_time(), host_time(step=4e-6, follow=1e-6, reserve=1e-6)
    saved = savings(before, after, store_us=0.1)
    assert saved == pytest.approx({"one table": 3, "12 stores": 1.2, "the rest, with begin": 1.8})
    assert sum(saved.values()) == pytest.approx(before.step_us - after.step_us)
