"""Lesson 02's wrong append: a copy that comes late loses a token, and no record tells."""

from labkit.learn.lesson_02.appends import CopiesAfterTheWrite
from labkit.learn.lesson_02.toy import append_step, moments_of, reads, two_sharers


def test_copies_after_the_write_lose_a_token_and_no_record_tells():
    sessions = two_sharers()
    append_step(CopiesAfterTheWrite, sessions, [10, 20])
    assert [reads(s) for s in sessions] == [[1, 2, 20], [1, 2, 20]]
    sessions[0].kv_manager.check_integrity(sessions)


def test_copies_after_the_write_lose_the_copiers_token_with_nobody_beside_it():
    first, second = two_sharers()
    append_step(CopiesAfterTheWrite, [second], [20])
    assert reads(second) == [1, 2, 0] and reads(first) == [1, 2]


def test_the_token_is_there_until_the_copy_comes():
    _, ready, written, end = moments_of(CopiesAfterTheWrite)
    assert [frame.slots[1] for frame in (ready, written, end)] == [(0, 0, 0, 0), (0, 0, 10, 0), (1, 2, 20, 0)]
    assert {frame.holders for frame in (ready, written, end)} == {("B", "A")}
