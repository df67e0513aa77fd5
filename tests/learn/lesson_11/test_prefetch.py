"""What a program asks for before the wait: its own rows of the weight, and nothing else."""

import re

import pytest

from labkit.learn.exercise import not_attempted
from labkit.learn.lesson_11.prefetch import PlayedProgram, check_prefetch


def product(early=lambda program, x, weight, rows: None, late=lambda program, x, weight, rows: None):
    def made(program, x, weight, rows):
        early(program, x, weight, rows)
        program.wait()
        late(program, x, weight, rows)
        return program.load(weight, rows) @ program.load(x)

    return made


def reads_x_early(program, x, weight, rows):
    program.prefetch(weight, rows)
    there = program.load(x)
    program.wait()
    return program.load(weight, rows) @ there


def never_waits(program, x, weight, rows):
    program.prefetch(weight, rows)
    return program.load(weight, rows) @ program.load(x)


def own_rows_twice(program, x, weight, rows):
    program.prefetch(weight, rows)
    program.prefetch(weight, rows)


WRONG = {
    "nothing": (product(), r"asks for rows \[\] of the weight before wait\(\), expected \[0, 1\]; row 0 is"),
    "x": (
        product(lambda p, x, w, r: p.prefetch(x)),
        r"what is asked for early is there: program 0 of 4 asks for x",
    ),
    "all weights": (
        product(lambda p, x, w, r: p.prefetch(w)),
        r"asks for rows \[0, 1, 2, 3, 4, 5, 6, 7\] of the",
    ),
    "twice": (
        product(own_rows_twice),
        r"program 0 of 4 asks for row 0 of the weight 2 times",
    ),
    "loaded early, too": (
        product(lambda p, x, w, r: (p.prefetch(w, r), p.load(w, r))),
        r"before the wait weights are only asked for: program 0 of 4 loads rows \[0, 1\] of them there",
    ),
    "loads all": (
        product(lambda p, x, w, r: p.prefetch(w, r), lambda p, x, w, r: p.load(w)[r]),
        r"a program reads its own rows: program 0 of 4 loads rows \[0, 1, 2, 3, 4, 5, 6, 7\]",
    ),
    "x read early": (
        reads_x_early,
        r"x is read behind the wait: program 0 of 4 makes \[0\.0, 0\.0\], expected \[",
    ),
    "never waits": (never_waits, r"program 0 of 4 never calls wait\(\)"),
    "unwritten": (lambda *_: not_attempted(), r"^prefetch: not attempted yet\.$"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused_with_its_number_and_rows(name):
    part, words = WRONG[name]
    report = check_prefetch(part)
    assert not report.ok and re.search(words, report.text), report


@pytest.mark.parametrize(
    "early",
    [
        lambda p, x, w, r: p.prefetch(w, r),
        lambda p, x, w, r: [p.prefetch(w, slice(n, n + 1)) for n in range(r.start, r.stop)],
    ],
)
def test_a_right_program_asks_for_its_rows_in_whatever_clothes(early):
    report = check_prefetch(product(early))
    assert report.ok and "192 of 192 bytes" in report.text, report


def test_the_kernel_before_writes_once_at_the_first_wait():
    written = []
    program = PlayedProgram(lambda: written.append(1))
    program.wait()
    program.wait()
    assert written == [1] and program.has_waited
