"""Lesson 03's traps: what is wrong on purpose is wrong in just that way."""

from triton_marks import needs_triton

from labkit import lab
from labkit.learn.lesson_03.toy import runs_of
from labkit.learn.lesson_03.traps import WithoutMask

pytestmark = needs_triton


def test_without_a_mask_programs_write_into_the_next_slot_and_read_what_is_not_theirs():
    keys, _ = runs_of(WithoutMask, (1, 1, 1))
    written = [offset for offset, _, _ in keys.touched("cache_ptr")]
    assert len(written) == 6 * 8  # lanes, where a head has 6 numbers
    slots = {keys.layouts["cache_ptr"].index_of(offset)[2] for offset in written}
    assert slots == {1, 2}
    assert {name for name, *_ in keys.strays()} == {"new_ptr"}


def test_the_gate_refuses_it():
    report = lab.start("03").check(kv_write=WithoutMask)
    assert "no slot is touched but those that are named" in report.text and not report.ok
