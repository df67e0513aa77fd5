"""Three engines beside each other: who is compared with whom, and what the table says."""

from types import SimpleNamespace

from labkit import LADDER
from labkit.kvcache import CachedBlockTables
from labkit.learn.measured import BELOW, PACKAGE, YOURS, Measured, measure_host

MADE_UP = Measured(64, {BELOW: (4e-3, 4.1e-3) * 4, YOURS: (4.1e-3, 4e-3) * 4, PACKAGE: (2e-3, 2.05e-3) * 4})


def test_the_table_has_a_row_per_engine_with_its_verdict():
    table = MADE_UP.table()
    assert table["host µs per step"].tolist() == [4050, 4050, 2025]
    assert table["verdict"].tolist() == ["", "cannot tell", "faster"]
    assert table.loc[PACKAGE, "times as fast"].startswith("×2.00 [")


def test_the_three_engines_are_timed_in_turn_each_run_a_fresh_one_and_yours_has_your_part():
    made = []

    class Mine(CachedBlockTables):
        def __init__(self, *about) -> None:
            super().__init__(*about)
            made.append(self)

    measured = measure_host(LADDER["00"], LADDER["01"], {"block_tables": Mine}, 2, "cpu", rounds=2)
    assert list(measured.seconds) == [BELOW, YOURS, PACKAGE]
    assert [len(runs) for runs in measured.seconds.values()] == [4, 4, 4]
    assert len(made) == 4 and measured.batch_size == 2


def test_prompts_can_be_of_differing_lengths(monkeypatch):
    asked = []

    def timed(engine, num_steps, lengths):
        asked.append(lengths)
        return SimpleNamespace(step_seconds=[1e-3])

    monkeypatch.setattr("labkit.learn.measured.time_host_steps", timed)
    measure_host(LADDER["03"], LADDER["04"], {}, 2, "cpu", 1, lengths=(8, 11))
    assert asked == [(8, 11)] * 6
