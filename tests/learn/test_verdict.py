"""A verdict is one line for a program, and lines that fit the screen for a reader."""

from labkit.learn import Prediction
from labkit.learn.exercise import Exercise
from labkit.learn.gates import Report
from labkit.learn.verdict import WIDTH, Verdict, wrapped

LONG = "block_tables breaks a contract: " + "a row names the blocks that its request holds now, " * 6


def test_a_printed_verdict_has_short_lines_that_hang_below_the_first(capsys):
    print(Verdict(LONG))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("block_tables breaks") and len(rest) == 3
    assert all(line.startswith("    ") for line in rest)
    assert all(len(line) <= WIDTH for line in (first, *rest))
    assert " ".join(line.strip() for line in (first, *rest)) == LONG.strip()


def test_in_a_sentence_it_is_wrapped_too_and_for_a_program_it_is_one_line():
    verdict = Verdict(LONG)
    assert f"{verdict}" == str(verdict) == wrapped(LONG)
    assert "\n" not in verdict and verdict == LONG and verdict.startswith("block_tables breaks")


def test_no_word_is_broken_and_no_number_loses_its_sign():
    word = "x" * (WIDTH + 20)
    assert word in wrapped(f"a {word} b").split()
    assert "-0.065" in wrapped("number " * 13 + "is -0.065, expected").split("\n")[1]


def test_whatever_is_said_of_the_readers_work_is_printed_so():
    """The question of a prediction, the verdict on an exercise, a gate's report."""
    question = Prediction("Rows made anew per step, on average, with 64 requests of 12 layers", "rows")
    exercise = Exercise(sum, lambda rng: {"numbers": list(range(30))}, "The sum of all " * 5)
    report = Report(False, LONG)
    for said in (question.score(12), exercise.grade(lambda numbers: 0), report):
        lines = str(said).splitlines()
        assert len(lines) > 1 and max(map(len, lines)) <= WIDTH
