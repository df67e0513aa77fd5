"""An engine has one driver at a time, is never stopped with half a change, and says so when it was."""

import gc
import random
import signal
import sys
import threading
import weakref
from contextlib import contextmanager, nullcontext, suppress
from itertools import count

import pytest
import torch
from helpers import (
    ENGINES,
    GREEDY,
    SEEDED,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from streaming_helpers import TIMEOUT, nobody_waits_for_ever, serving, start  # noqa: F401

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine import StreamingServer
from labkit.engine import guard as guard_module
from labkit.engine.guard import Guard
from labkit.errors import BrokenEngineError, EngineBusyError, LabkitError, RequestError

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, SEEDED, GREEDY]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]
PRESSED = {"block_size": 2, "max_blocks_per_layer": 14, "max_batch_size": 3}  # some have to wait, or to go


# --- interrupts: a real signal, at a chosen line of the engine's code ------------------------------------


@pytest.fixture(autouse=True)
def interrupts_raise():
    """As in a terminal: a job in the background begins with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted_at_line(number, times=1):
    """SIGINT when that many lines of labkit have run in here; again at the lines that follow."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "labkit" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        if event == "line" and number <= count < number + times:
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(options):
    """How many lines of labkit a run takes, as the tests below count them."""
    engine = make_engine(options=options, **PRESSED)
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if "labkit" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        engine.generate(PROMPTS, EACH_PARAMS)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_an_interrupt_anywhere_in_generate_costs_nothing_but_that_call(options):
    numbers = random.Random(0).sample(range(1, lines_of(options)), 15)
    engine = make_engine(options=options, **PRESSED)
    other = engine.add_request(PROMPTS[0], GREEDY)
    outputs = []
    for number in numbers:
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(number):
            for _ in range(3):  # with prompts in the cache, one takes fewer lines
                engine.generate(PROMPTS, EACH_PARAMS)
        engine.check_integrity()
        assert engine.stats().waiting + engine.stats().running <= 1  # the other one
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    outputs += run(engine)
    assert tokens_by_request(outputs) == {other: EXPECTED[0]}
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_whoever_steps_on_after_interrupts_gets_every_token_once(options):
    rng = random.Random(1)
    engine = make_engine(options=options, **PRESSED)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
    outputs, num_interrupts = [], 0
    while engine.has_work:
        try:
            with interrupted_at_line(rng.randrange(1, 600)):
                step_outputs = engine.step()
            outputs += step_outputs
        except KeyboardInterrupt:
            num_interrupts += 1
        engine.check_integrity()
    assert num_interrupts >= 5
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_an_interrupted_stream_is_cancelled_and_nothing_else(options):
    rng = random.Random(2)
    engine = make_engine(options=options, **PRESSED)
    other = engine.add_request(PROMPTS[3], SEEDED)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(rng.randrange(1, 900)):
            for _ in range(9):
                list(engine.stream(PROMPTS[1], SEEDED))
        engine.check_integrity()
        gc.collect()
        assert engine.stats().waiting + engine.stats().running <= 1
    last = list(engine.stream(PROMPTS[1], SEEDED))[-1]
    assert last.completion.token_ids == EXPECTED[1]
    assert engine.stats().counters.finished.get("length", 0) >= 1
    left = run(engine)
    assert tokens_by_request(left).get(other, EXPECTED[3])[-1] == EXPECTED[3][-1]
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize("number", [50, 150, 300])  # as it is admitted, computed, sampled
def test_a_second_interrupt_does_not_wait_and_the_engine_says_that_it_cannot_be_trusted(number):
    engine = make_engine()
    engine.add_request(PROMPTS[0], GREEDY)
    with pytest.raises(KeyboardInterrupt), interrupted_at_line(number, times=40):
        engine.step()
    for call in (
        engine.step,
        lambda: engine.generate([PROMPTS[0]]),
        lambda: next(engine.stream(PROMPTS[0])),
        lambda: engine.add_request(PROMPTS[0]),
        lambda: engine.cancel(0),
        lambda: StreamingServer(engine),
    ):
        with pytest.raises((BrokenEngineError, LabkitError), match=r"build a new engine|unfinished requests"):
            call()
    assert engine.stats().running + engine.stats().waiting == 1  # looking is allowed


def test_between_calls_interrupts_are_as_they_were():
    engine = make_engine()
    engine.generate([PROMPTS[0]], GREEDY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("mine"))
    try:
        with interrupted_at_line(50):
            engine.generate([PROMPTS[0]], GREEDY)  # a handler that does not raise stops nothing
        assert seen == ["mine"]
        engine.generate([PROMPTS[0]], GREEDY)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["mine"]


def test_where_interrupts_are_ignored_they_stay_ignored():
    engine = make_engine()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupted_at_line(50):
            assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted_in_the_guard(call, number, times=1):
    """Call with SIGINT at these lines of the guard: what it raised, if the handler is back, if one came."""
    before, count = signal.getsignal(signal.SIGINT), 0

    def trace(frame, event, argument):
        nonlocal count
        if event == "line" and frame.f_code.co_filename == guard_module.__file__:
            count += 1
            if number <= count < number + times:
                signal.raise_signal(signal.SIGINT)
        return trace

    raised = None
    sys.settrace(trace)
    try:
        call()
    except BaseException as error:
        raised = type(error)
    finally:
        sys.settrace(None)
        after = signal.signal(signal.SIGINT, before)
    return raised, after is before, count >= number


def test_wherever_in_its_guard_an_interrupt_comes_it_is_raised_by_that_very_call():
    engine, number = make_engine(), 1
    while True:
        raised, is_handler_back, came = interrupted_in_the_guard(engine.step, number)
        if not came:
            break
        assert (raised, is_handler_back) == (KeyboardInterrupt, True), f"line {number}"
        engine.step()  # nothing is left of it
        number += 1
    assert number > 15
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


@pytest.mark.parametrize("times", [2, 3])
def test_after_several_interrupts_at_once_they_have_their_handler_again(times):
    number, came = 1, True
    while came:
        raised, is_handler_back, came = interrupted_in_the_guard(make_engine().step, number, times)
        assert is_handler_back and (raised is KeyboardInterrupt or not came), f"line {number}"
        number += 1
    assert number > 15


def test_interrupts_of_who_is_refused_are_raised_and_break_nothing_of_whoever_is_inside():
    engine, number, came = make_engine(), 1, True
    with serving(engine) as server:
        while came:
            for times in (1, 2):
                raised, is_handler_back, came = interrupted_in_the_guard(engine.step, number, times)
                assert is_handler_back and raised is (KeyboardInterrupt if came else EngineBusyError), number
                if not came:
                    break
            number += 1
        assert number > 8
        assert list(server.submit(PROMPTS[0], GREEDY))[-1].completion.token_ids == EXPECTED[0]
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


def test_an_interrupt_is_not_lost_in_a_step_that_fails(monkeypatch):
    engine = make_engine()
    engine.add_request(PROMPTS[0], GREEDY)

    def fails(prefixes):
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as raised:
        patched.setattr(engine.prefill, "_prompt_logits", fails)
        engine.step()
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    assert tokens_by_request(run(engine)) == {0: EXPECTED[0]}


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_however_many_interrupts_there_are_a_handler_that_does_not_raise_stops_nothing(handler):
    engine = make_engine()
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interrupted_at_line(900, times=40):
            assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


def test_a_handler_may_choose_who_gets_the_next_interrupt_and_that_one_waits_too(monkeypatch):
    """As programs do that end in good order at the first, and at once at the second."""
    engine, seen, in_step = make_engine(), [], False
    decode = engine.decode_step.next_tokens

    def interrupted(requests):
        nonlocal in_step
        in_step = True
        signal.raise_signal(signal.SIGINT)
        in_step = False
        return decode(requests)

    def first(*_):
        seen.append(("first", in_step))
        signal.signal(signal.SIGINT, second)

    def second(*_):
        seen.append(("second", in_step))

    monkeypatch.setattr(engine.decode_step, "next_tokens", interrupted)
    signal.signal(signal.SIGINT, first)
    assert tokens_of(engine.generate([PROMPTS[0]], SamplingParams(4))) == [EXPECTED[0][:4]]
    assert signal.getsignal(signal.SIGINT) is second
    assert seen == [("first", False), ("second", False), ("second", False)]


# --- an error between a step's tokens and its bookkeeping --------------------------------------------------

TEARS = {
    "giving tokens": lambda engine: (engine, "_accept"),
    "ending a request": lambda engine: (engine, "_finish"),
    "handing out": lambda engine: (engine, "_hand_out"),
    "queueing": lambda engine: (engine.scheduler, "add"),
    "counting who was passed over": lambda engine: (engine.scheduler, "_count_passed_over"),
    "leaving a queue": lambda engine: (engine.scheduler, "remove"),
    "waiting again": lambda engine: (engine.scheduler, "put_back"),
    "giving a block back": lambda engine: (engine.kv_manager, "deallocate_block"),
    "taking a block": lambda engine: (engine.kv_manager, "allocate_block"),
}


@pytest.mark.slow
@pytest.mark.parametrize("at_call", [0, 1, 3])
@pytest.mark.parametrize("place", TEARS)
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_after_an_error_in_the_bookkeeping_the_tokens_are_right_or_refused(
    monkeypatch, options, place, at_call
):
    engine = make_engine(options=options, **PRESSED)
    owner, name = TEARS[place](engine)
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), at_call, KeyboardInterrupt))
    for _ in range(2):  # on some rungs it is not called that often in one
        with suppress(KeyboardInterrupt, BrokenEngineError):
            assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    try:
        tokens = tokens_of(engine.generate(PROMPTS, EACH_PARAMS))
    except BrokenEngineError:
        return
    assert tokens == EXPECTED
    assert not engine.has_work
    assert_no_block_is_lost(engine)


class Failing:
    """A context in which the n-th call or return of a function in labkit's engine raises MemoryError, those
    of its guard apart. It may be entered again, and counts on."""

    def __init__(self, n):
        self.n, self.count = n, 0

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *error):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        file, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename
        if "labkit/engine" not in file or file == guard_module.__file__:
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


def test_an_error_as_the_guard_is_entered_leaves_the_engine_to_others():
    """As of a timeout, whose signal does not wait."""
    guard, lines = make_engine().guard, 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename == guard_module.__file__ and event == "line":
            lines += 1
            if lines == n:
                raise TimeoutError
        return trace

    def come_in():
        with guard:
            pass

    for n in count(1):
        lines = 0
        sys.settrace(trace)
        try:
            guard.__enter__()
            break  # no line was left
        except TimeoutError:
            pass
        finally:
            sys.settrace(None)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, n
        start(come_in).result(TIMEOUT)
    guard.__exit__(None, None, None)
    assert n > 8


def test_an_engine_that_was_torn_does_not_serve_on():
    engine = make_engine()
    with StreamingServer(engine) as server:
        engine._accept = failing(engine._accept, 2)
        streams = [server.submit(prompt, GREEDY) for prompt in PROMPTS[:2]]
        for stream in streams:
            with pytest.raises(LabkitError, match=r"broke down|build a new engine"):
                list(stream)
        with pytest.raises(LabkitError):
            list(server.submit(PROMPTS[0], GREEDY))


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


def test_a_server_cannot_have_an_engine_that_is_being_driven():
    engine = make_engine()
    with engine.guard:
        refused = start(StreamingServer, engine)
        with pytest.raises(EngineBusyError, match="another thread drives this engine"):
            refused.result()
    with serving(engine) as server:
        assert list(server.submit(PROMPTS[0], GREEDY))[-1].completion.token_ids == EXPECTED[0]


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


class Guarded:
    def __init__(self, is_right=True):
        self.is_right, self.num_proofs = is_right, 0

    def check_integrity(self):
        self.num_proofs += 1
        assert self.is_right


def test_a_guard_lets_its_own_thread_in_again_and_leaves_with_the_last():
    guarded = Guarded()
    guard = Guard(guarded)
    with guard:
        with guard:
            assert guard.is_inside
        assert guard.is_inside
        with pytest.raises(ZeroDivisionError), guard:
            raise ZeroDivisionError
    assert not guard.is_inside and guarded.num_proofs == 1 and not guard.is_broken
    with pytest.raises(ZeroDivisionError), guard, guard.bookkeeping:
        raise ZeroDivisionError
    with pytest.raises(BrokenEngineError, match=r"build a new engine"), guard:
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_guard_whose_proof_fails_is_broken():
    guarded = Guarded(is_right=False)
    guard = Guard(guarded)
    with pytest.raises(KeyError), guard:
        raise KeyError
    with pytest.raises(BrokenEngineError), guard:
        pass


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
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


def leave(stream, server):
    next(stream)
    server.close()


def be_cut_short(stream, server):
    leave(stream, server)
    with suppress(LabkitError):
        list(stream)


@pytest.mark.parametrize("use", [leave, be_cut_short])
def test_so_it_does_with_the_last_stream_of_its_server(use):
    engine = make_engine()
    gone, server = weakref.ref(engine), StreamingServer(engine)
    gc.disable()
    try:
        use(server.submit(PROMPTS[0], SamplingParams(50)), server)
        del engine, server
        assert gone() is None
    finally:
        gc.enable()


def test_a_prompt_that_is_refused_breaks_nothing():
    engine = make_engine(small_model())
    with pytest.raises(LabkitError):
        engine.cancel(99)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


# --- on a GPU --------------------------------------------------------------------------------------------


def gpu_engine(model, number):
    """Each prompt is prefilled by itself: the same numbers whoever else waits."""
    return InferenceEngine(
        model,
        LADDER[number].options,
        device="cuda",
        dtype=torch.float32,
        cache=CacheConfig(block_size=4, max_blocks_per_layer=16),
        scheduler=SchedulerConfig(max_batch_size=3, prefill_max_batch_size=1),
    )


@pytest.mark.cuda
@pytest.mark.parametrize("number", ["05", "07", "08", "09", "10", "11", "13", "14"])
def test_on_a_gpu_interrupts_cost_nothing_but_their_call_while_graphs_replay_too(tiny, number):
    expected = tokens_of(gpu_engine(tiny, number).generate(PROMPTS, EACH_PARAMS))
    rng = random.Random(3)
    engine = gpu_engine(tiny, number)
    for _ in range(12):
        with pytest.raises(KeyboardInterrupt), interrupted_at_line(rng.randrange(1, 3000)):
            for _ in range(9):
                engine.generate(PROMPTS, EACH_PARAMS)
        engine.check_integrity()
        assert not engine.has_work
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
    outputs = []
    while engine.has_work:
        with suppress(KeyboardInterrupt):
            with interrupted_at_line(rng.randrange(1, 600)):
                step_outputs = engine.step()
            outputs += step_outputs
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == expected
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
@pytest.mark.parametrize("number", ["05", "10", "14"])
def test_on_a_gpu_a_reader_that_is_interrupted_leaves_the_server_and_its_other_readers_alone(tiny, number):
    expected = tokens_of(gpu_engine(tiny, number).generate(PROMPTS, EACH_PARAMS))
    with serving(gpu_engine(tiny, number)) as server:
        for line in (5, 40, 90):
            streams = [server.submit(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
            with pytest.raises(KeyboardInterrupt), interrupted_at_line(line):
                list(streams[0])
                list(server.submit(PROMPTS[0], EACH_PARAMS[0]))
            streams[0].close()
            assert [list(s)[-1].completion.token_ids for s in streams[1:]] == expected[1:]
