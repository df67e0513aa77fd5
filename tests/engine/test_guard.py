"""An engine has one driver at a time, is never stopped with half a change, and says so when it was."""

import gc
import signal
import sys
import threading
import weakref
from contextlib import nullcontext, suppress
from itertools import count

import pytest
from helpers import (
    GREEDY,
    SEEDED,
    assert_no_block_is_lost,
    every_engine,
    make_engine,
    run,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS
from streaming_helpers import TIMEOUT, nobody_waits_for_ever, serving, start  # noqa: F401
from traced import at_lines, interrupts_raise  # noqa: F401

from labkit import LADDER, SamplingParams
from labkit.engine import StepOutputs, StreamingServer, delivery
from labkit.engine import engine as engine_module
from labkit.engine import guard as guard_module
from labkit.errors import BrokenEngineError, EngineBusyError, LabkitError, RequestError

# --- an error between a step's tokens and its bookkeeping --------------------------------------------------


class Failing:
    """A context in which the n-th call or return in labkit's engine or cache raises MemoryError, but for the
    guard's. It may be entered again, and counts on."""

    def __init__(self, n):
        self.n, self.count = n, 0

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *error):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        file, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename
        if not ("labkit/engine" in file or "labkit/kvcache" in file) or file == guard_module.__file__:
            return None
        if event == "call" or (event == "return" and "labkit" in caller):  # the test's own return stays
            self.count += 1
            if self.count == self.n:
                raise MemoryError
        return self.trace


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as generators are closed
@pytest.mark.parametrize("rung", ["00", "06", "10", "14"])
def test_after_an_error_anywhere_in_a_step_each_request_gets_its_tokens_or_is_refused(rung):
    trials = broken = 0
    for n in count(1, step=9):
        engine, failing = make_engine(options=LADDER[rung].options, decode_first=n % 2 == 0), Failing(n)
        outputs, ids = [], [engine.add_request(PROMPTS[0], GREEDY)]
        with suppress(BrokenEngineError):
            for step in range(40):
                if step == 2:  # another one joins, and both decode in the last two steps that may fail
                    ids.append(engine.add_request(PROMPTS[4], GREEDY))
                made = ()
                with suppress(MemoryError), failing if step < 5 else nullcontext():
                    made = engine.step()
                outputs += made
        trials, broken = trials + 1, broken + engine.guard.is_broken
        if not engine.guard.is_broken:
            assert not engine.has_work, n
            assert tokens_by_request(outputs) == {ids[0]: EXPECTED[0], ids[1]: EXPECTED[4]}, n
            assert_no_block_is_lost(engine)
        if failing.count < n:
            break
    assert trials > 40 and broken < trials / 5


@pytest.mark.parametrize("ask", ["generate", "stream", "add_request"])
def test_a_request_whose_call_fails_as_it_is_queued_is_no_request(ask):
    engine = make_engine()
    calls = {
        "generate": lambda: engine.generate(PROMPTS, GREEDY),
        "stream": lambda: list(engine.stream(PROMPTS[0], GREEDY)),
        "add_request": lambda: engine.add_request(PROMPTS[0], GREEDY),
    }
    for n in range(1, 40):
        with suppress(MemoryError, RequestError), Failing(n):
            calls[ask]()
            break  # it came through
        assert engine.guard.is_broken or not engine.has_work, n
        if engine.guard.is_broken:
            engine = make_engine()
    assert n > 3


def time_out():
    raise TimeoutError


def test_an_error_as_the_guard_is_entered_leaves_the_engine_to_others():
    """As of a timeout, whose signal does not wait."""
    guard = make_engine().guard

    def come_in():
        with guard:
            pass

    for n in count(1):
        try:
            with at_lines((n,), time_out, within=guard_module.__file__):
                guard.__enter__()
            break  # no line was left
        except TimeoutError:
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, n
        start(come_in).result(TIMEOUT)
    guard.__exit__(None, None, None)
    assert n > 8


def test_of_a_request_whose_cancellation_was_stopped_no_token_is_lost():
    """As by a timeout, whose signal does not wait; or the engine says that it cannot go on."""
    for n in count(1):
        engine = make_engine()
        number = engine.add_request(PROMPTS[0], GREEDY)
        engine.generate([PROMPTS[4]], SamplingParams(3))  # its first tokens wait for a step
        with suppress(TimeoutError), at_lines((n,), time_out, within=delivery.__file__):
            engine.cancel(number)
        if engine.guard.is_broken:
            continue
        if number not in engine.delivery.requests:
            break
        assert tokens_by_request(run(engine)) == {number: EXPECTED[0]}, n
    assert n > 8 and not engine.has_work


# --- one driver at a time ----------------------------------------------------------------------------------


def test_beside_a_server_its_engine_refuses_everybody_else():
    engine = make_engine()
    with serving(engine) as server:
        first = server.submit(PROMPTS[0], GREEDY)
        for call in (
            engine.step,
            lambda: engine.generate([PROMPTS[1]], GREEDY),
            lambda: next(engine.stream(PROMPTS[1])),
            lambda: engine.add_request(PROMPTS[1]),
            lambda: engine.cancel(0),
            lambda: StreamingServer(engine),
        ):
            with pytest.raises(LabkitError, match=r"StreamingServer drives this|unfinished"):
                call()
        assert list(first)[-1].completion.token_ids == EXPECTED[0]
        with pytest.raises(EngineBusyError, match="a StreamingServer drives this engine"):
            StreamingServer(engine)
        assert list(server.submit(PROMPTS[1], SEEDED))[-1].completion.token_ids == EXPECTED[1]
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED  # closed: it is anybody's again


def test_of_two_threads_that_generate_one_is_refused_and_the_other_undisturbed(monkeypatch):
    engine = make_engine()
    inside, go_on = threading.Event(), threading.Event()
    decode = engine.decode_step.next_tokens

    def slow(requests):
        inside.set()
        go_on.wait()
        return decode(requests)

    monkeypatch.setattr(engine.decode_step, "next_tokens", slow)
    first = start(engine.generate, PROMPTS, EACH_PARAMS)
    inside.wait()
    with pytest.raises(EngineBusyError, match="another thread drives this engine"):
        engine.generate(PROMPTS, EACH_PARAMS)
    go_on.set()
    assert tokens_of(first.result()) == EXPECTED
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("change", ["append", "without"])
def test_what_another_thread_changes_while_a_step_returns_is_handed_out_once(monkeypatch, change):
    engine = make_engine()
    stays, goes = (engine.add_request(PROMPTS[i], GREEDY) for i in (0, 4))
    call = {"append": engine.step, "without": lambda: engine.cancel(goes) and ()}[change]
    make_change, others, go_on = getattr(StepOutputs, change), [], threading.Event()
    changing = threading.Event()

    def wait_and_change(outbox, *args):
        changing.set()
        assert go_on.wait(TIMEOUT)
        return make_change(outbox, *args)

    def let_another_in():
        if not changing.is_set():
            monkeypatch.setattr(StepOutputs, change, wait_and_change)
            others.append(start(call))
            assert changing.wait(TIMEOUT)
        return StepOutputs()

    monkeypatch.setattr(engine_module, "StepOutputs", let_another_in)
    outputs = list(engine.step())
    go_on.set()
    tokens = tokens_by_request([*outputs, *others[0].result(TIMEOUT), *run(engine)])
    assert tokens == {stays: EXPECTED[0]} | ({goes: EXPECTED[4]} if change == "append" else {})


def test_a_stream_dropped_in_the_middle_of_a_step_is_cancelled_behind_it(monkeypatch):
    """A garbage collection can run at any moment, and close a forgotten generator in there."""
    engine = make_engine(prefix_cache=False)
    streams = [engine.stream(PROMPTS[1], SamplingParams(20))]
    next(streams[0])
    decode = engine.decode_step.next_tokens

    def drops_it(requests):
        token_ids = decode(requests)
        streams.clear()
        return token_ids

    monkeypatch.setattr(engine.decode_step, "next_tokens", drops_it)
    assert tokens_of(engine.generate([PROMPTS[0]], GREEDY)) == EXPECTED[:1]
    assert engine.stats().counters.finished == {"cancelled": 1, "length": 1}
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@every_engine
def test_an_engine_goes_with_its_last_user_and_not_at_some_garbage_collection(options):
    """One that waits for it could go, with its graphs, in the middle of another's capture, and spoil it."""
    engine = make_engine(options=options)
    engine.generate(PROMPTS, EACH_PARAMS)
    gone = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()


def test_so_it_does_with_the_last_stream_of_its_server():
    engine = make_engine()
    gone, server = weakref.ref(engine), StreamingServer(engine)
    gc.disable()
    try:
        stream = server.submit(PROMPTS[0], SamplingParams(50))
        next(stream)
        server.close()
        with suppress(LabkitError):
            list(stream)
        del engine, server, stream
        assert gone() is None
    finally:
        gc.enable()
