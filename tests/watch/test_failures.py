"""A failure made on purpose: the call that was asked for, and no other."""

import pytest
from helpers import GREEDY, make_engine, tokens_alone

from labkit import LADDER, watch
from labkit.engine.step.staging import TokenCopy
from labkit.errors import OptionError


class Worker:
    watch_points = ("work",)

    def work(self, number, *, factor=1):
        return factor * number


@pytest.mark.parametrize("at_call", [0, 1, 2])
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


def test_a_call_that_does_not_come_never_fails():
    worker = Worker()
    with watch.planted_failure(worker, "work", at_call=3):
        assert [worker.work(i) for i in range(3)] == [0, 1, 2]
    assert worker.work(7) == 7


def test_what_may_not_be_watched_may_not_fail():
    with pytest.raises(OptionError, match=r"Worker\.rest"), watch.planted_failure(Worker(), "rest"):
        pytest.fail("it was not refused")


@pytest.mark.parametrize("rung", ["06", "10"])
def test_a_read_that_fails_costs_an_engine_no_token(rung):
    engine = make_engine(options=LADDER[rung].options)
    request_id = engine.add_request((1, 2, 3), GREEDY)
    outputs = list(engine.step())
    with pytest.raises(watch.PlantedError), watch.planted_failure(TokenCopy, "read"):
        engine.step()
    engine.check_integrity()
    while engine.has_work:
        outputs += engine.step()
    made = tuple(output.token_id for output in outputs if output.request_id == request_id)
    assert made == tokens_alone((1, 2, 3), GREEDY)
