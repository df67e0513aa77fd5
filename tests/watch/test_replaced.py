"""What stands in for a part of an engine, and that the part is back afterwards."""

import pytest
from helpers import make_engine

import labkit
from labkit import LADDER, watch
from labkit.errors import LabkitError, OptionError


class Base:
    watch_points = ("greet", "part")

    def __init__(self):
        self.part = "the part"

    def greet(self, name):
        return f"hello {name}"

    def hidden(self):
        return "hidden"


class Derived(Base):
    watch_points = ("more",)

    def more(self):
        return "more"


def louder(inner):
    return lambda *args: inner(*args).upper()


def test_what_an_instance_has_of_its_own_is_there_again():
    owner = Base()
    owner.greet = own = lambda name: f"hi {name}"
    with watch.replaced(owner, "greet", louder):
        assert owner.greet("you") == "HI YOU"
    assert owner.greet is own
    with watch.replaced(owner, "part", lambda inner: [inner]) as stand_in:
        assert owner.part is stand_in == ["the part"]
    assert owner.part == "the part"


def test_all_is_back_after_an_error():
    owner = Base()
    with pytest.raises(ZeroDivisionError), watch.replaced(owner, "greet", louder):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), watch.replaced(owner, "greet", lambda inner: 1 / 0):
        pytest.fail("there is no stand-in")
    assert vars(owner) == {"part": "the part"}


def test_in_a_class_it_is_replaced_for_all_instances():
    own, owner = vars(Base)["greet"], Base()
    with watch.replaced(Base, "greet", louder):
        assert Base.greet(owner, "you") == owner.greet("you") == "HELLO YOU" == Derived().greet("you")
    assert vars(Base)["greet"] is own and owner.greet("you") == "hello you"
    with watch.replaced(Derived, "greet", louder):
        assert Derived().greet("you") == "HELLO YOU" and Base().greet("you") == "hello you"
    assert "greet" not in vars(Derived)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (Base(), "hidden", "Base.hidden cannot be watched: it lets greet, part be watched"),
        (Base(), "no_such", "Base.no_such cannot be watched"),
        (Base, "more", "Base.more cannot be watched"),
        (object(), "hash", "object.hash cannot be watched: it has no watch points"),
    ],
)
def test_what_is_not_declared_is_refused(owner, name, message):
    with pytest.raises(OptionError, match=message) as refused, watch.replaced(owner, name, pytest.fail):
        pytest.fail("it was not refused")
    assert isinstance(refused.value, LabkitError)


# --- a failure made on purpose: the calls that were asked for, and no others -------------------------------


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


# --- what the package declares -------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ["01", "06", "14"])
def test_after_a_watch_an_engine_has_nothing_of_its_own_more_than_before(rung):
    engine = make_engine(options=LADDER[rung].options, prefix_cache=False)
    parts = [engine.decode_step, engine.readback, engine.kv_manager, engine.model.network]
    before = [set(vars(part)) for part in parts]
    engine.add_request([1, 2, 3], labkit.SamplingParams(8, stop_on_eos=False))
    engine.step()
    engine.step()
    if rung < "06":
        watch.record_inputs(engine, 1)
    else:
        watch.record_sends(engine, 1)
        with watch.record_flights(engine):
            engine.step()
    assert [set(vars(part)) for part in parts] == before
