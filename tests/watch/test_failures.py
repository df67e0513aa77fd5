"""A failure made on purpose: the call that was asked for, and no other."""

import math

import pytest

from labkit import watch


class Worker:
    watch_points = ("work",)

    def work(self, number, *, factor=1):
        return factor * number


@pytest.mark.parametrize("at_call", [0, 2])
def test_one_call_fails_and_the_others_work(at_call):
    worker, made, looks = Worker(), [], []
    with watch.planted_failure(worker, "work", at_call, look=lambda: looks.append(len(made))):
        for number in range(4):
            try:
                made.append(worker.work(number, factor=10))
            except watch.PlantedError:
                made.append("failed")
    assert [i for i, was in enumerate(made) if was == "failed"] == looks == [at_call]
    assert [was for was in made if was != "failed"] == [10 * i for i in range(4) if i != at_call]
    assert not vars(worker)


def outcomes(worker, num_calls):
    """What each of so many calls made, or the text of its error."""
    made = []
    for number in range(num_calls):
        try:
            made.append(worker.work(number))
        except MemoryError as error:
            made.append(str(error))
    return made


def test_several_calls_fail_in_a_row_with_the_error_that_was_asked_for():
    fault = {"at_call": 1, "error": MemoryError}
    with watch.planted_failure(worker := Worker(), "work", num_calls=2, **fault):
        assert outcomes(worker, 4) == [0, *["work was made to fail"] * 2, 3]
    with watch.planted_failure(worker := Worker(), "work", num_calls=math.inf, **fault):
        assert outcomes(worker, 4) == [0, *["work was made to fail"] * 3]


def test_a_call_that_fails_behind_its_work_has_done_it():
    done = []

    class Noting(Worker):
        def work(self, number):
            done.append(number)
            return number

    with watch.planted_failure(worker := Noting(), "work", at_call=1, error=MemoryError, is_behind=True):
        assert outcomes(worker, 3) == [0, "work was made to fail, its work done", 2]
    assert done == [0, 1, 2]
