"""What a program loads before the wait: its own rows of the weight, and nothing else."""

import re

import pytest

from labkit.learn.lesson_11.held import check_held, waits_first


def loads_late(program, x, weight, rows):
    return waits_first(program, weight, rows) @ program.load(x)


def reads_x_early(program, x, weight, rows):
    held, there = program.load(weight, rows), program.load(x)
    program.wait()
    return held @ there


def never_waits(program, x, weight, rows):
    return program.load(weight, rows) @ program.load(x)


def loads_all(program, x, weight, rows):
    held = program.load(weight)[rows]
    program.wait()
    return held @ program.load(x)


def loads_twice(program, x, weight, rows):
    program.load(weight, rows)
    program.wait()
    return program.load(weight, rows) @ program.load(x)


def loads_one_row(program, x, weight, rows):
    held = program.load(weight, slice(rows.start, rows.start + 1))
    program.wait()
    return held @ program.load(x)


WRONG = {
    loads_late: r"program 0 of 4 has loaded rows \[\] of the weight when it waits, expected \[0, 1\]",
    reads_x_early: r"x is read after the wait: program 0 of 4 makes \[0\.0, 0\.0\], expected \[",
    never_waits: r"program 0 of 4 never calls wait\(\)",
    loads_all: r"program 0 of 4 loads rows \[0, 1, 2, 3, 4, 5, 6, 7\] of the weight, expected \[0, 1\]",
    loads_twice: r"loads rows of the weight again after it",
    loads_one_row: r"returns a tensor \[1\], expected a tensor \[2\]",
}


@pytest.mark.parametrize("part", WRONG)
def test_a_wrong_program_is_refused_with_its_number_and_rows(part):
    report = check_held(part)
    assert not report.ok and re.search(WRONG[part], report.text), report


def row_by_row(program, x, weight, rows):
    held = [program.load(weight, slice(n, n + 1))[0] for n in range(rows.start, rows.stop)]
    program.wait()
    there = program.load(x)
    return x.new_tensor([float(row @ there) for row in held])


def test_a_right_program_may_load_row_by_row():
    report = check_held(row_by_row)
    assert report.ok and "4 programs load their rows of the weight before the wait" in report.text, report
