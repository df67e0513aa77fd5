"""A failure made on purpose: the calls that were asked for, and no others."""

import pytest

from labkit import watch


class Worker:
    watch_points = ("work",)

    def __init__(self):
        self.done = []

    def work(self, number, *, factor=1):
        self.done.append(number)
        return factor * number


@pytest.mark.parametrize(("is_behind", "done"), [(False, [0, 3]), (True, [0, 1, 2, 3])])
def test_the_calls_asked_for_fail_in_place_of_their_work_or_behind_it(is_behind, done):
    worker, made = Worker(), []
    with watch.planted_failure(worker, "work", 1, error=MemoryError, num_calls=2, is_behind=is_behind):
        for number in range(4):
            try:
                made.append(worker.work(number, factor=10))
            except MemoryError as error:
                made.append(str(error))
    said = "work was made to fail" + ", its work done" * is_behind
    assert made == [0, said, said, 30] and worker.done == done
