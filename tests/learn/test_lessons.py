"""Each lesson has its own gate, and `check` asks for that gate's part."""

from dataclasses import replace

import pytest

from labkit import lab
from labkit.errors import OptionError
from labkit.kvcache import CachedBlockTables
from labkit.learn import steps
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Gate, Report
from labkit.learn.lessons import GATES


@pytest.mark.parametrize("number", GATES)
def test_a_gate_proves_its_own_parts_and_no_other(number):
    here, parts = lab.start(number), GATES[number].parts
    other = "readback" if "kv_append" in parts else "kv_append"
    refused = rf"lesson {number} proves {' or '.join(parts)}: here\.check\({parts[0]}=\.\.\.\)"
    for named in ([], [other], [parts[0], other]):
        with pytest.raises(OptionError, match=refused):
            here.check(**dict.fromkeys(named, CachedBlockTables))


class Mine:
    """A likeness of a part of the reader's."""


@pytest.mark.parametrize("own", [("layer_tables",), ("kv_write",), ("layer_tables", "kv_write")])
def test_of_several_parts_a_gate_proves_each_or_all_and_notes_them(own, monkeypatch):
    noted = []
    report = Report(True, "right")
    monkeypatch.setattr(Gate, "check", lambda gate, build, *named: report if named == own else None)
    monkeypatch.setattr(steps, "note_gate", lambda number, step: noted.append((number, step)))
    monkeypatch.setattr(steps, "is_written", lambda part: part is Mine)
    here = lab.start("07")
    last = f"step {steps.STEPS['07'].index(own[-1]) + 1} of 3"
    assert here.check(**dict.fromkeys(own, Mine)) == replace(report, step=last)
    assert noted == [("07", option) for option in own]
    first, *rest = own
    assert here.check(**{first: Unwritten}, **dict.fromkeys(rest, Mine)).ok  # a gap is left in one
    assert noted[len(own) :] == [("07", option) for option in rest]


class Unwritten:
    """A likeness of a part with a gap."""


def test_a_lesson_without_a_gate_says_which_have_one():
    with pytest.raises(OptionError, match=f"lesson 20 has no gate; those that have: {', '.join(GATES)}"):
        lab.start("20").check(block_tables=CachedBlockTables)


def test_a_step_that_fails_as_one_before_it_says_only_which_to_fill_in_first(monkeypatch):
    monkeypatch.setattr(steps, "FAILED", {})

    def told(number, wrong):
        report = (
            Report.broken("kv_append", BrokenContract(wrong)) if wrong else Report(True, "kv_append: right.")
        )
        return steps.in_turn(report, "02", number)

    assert told(1, "a: 8 b").drawn.rows == (("must hold", "a"), ("found", "8 b"))
    assert told(2, "a: 8 b").drawn.rows == (("try", "fill in step 1 first"),)
    assert told(3, "a: 1,024 b").drawn.rows == (("try", "fill in step 1 first"),)  # counted in another engine
    assert told(3, "a: c").before == ""
    assert told(1, "").ok and told(2, "a: 8 b").before == ""
    assert told(1, "a: 8 b").before == ""  # and not step 2, which comes after it
