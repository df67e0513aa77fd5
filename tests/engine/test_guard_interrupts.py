"""An interrupt, a real signal at a chosen line of the engine, costs nothing but the call that it stops."""

import dis
import random
import signal
from contextlib import suppress

import pytest
from helpers import (
    GREEDY,
    assert_no_block_is_lost,
    engines_by_day,
    make_engine,
    run,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS
from streaming_helpers import nobody_waits_for_ever, serving  # noqa: F401
from traced import at_lines, interrupts_raise  # noqa: F401

from labkit import LADDER, InferenceEngine
from labkit.engine import StreamingServer
from labkit.engine import guard as guard_module
from labkit.errors import BrokenEngineError, LabkitError

PRESSED = {"block_size": 2, "max_blocks_per_layer": 14, "max_batch_size": 3}  # some have to wait, or to go
EIGHT_BIT = LADDER["16"].options
on_every_engine = pytest.mark.parametrize(
    "options", [*engines_by_day.args[1], pytest.param(EIGHT_BIT, id="16")]
)


def expected_of(options):
    """The tokens that each request gets alone; in 8 bits they are an engine's own."""
    if options != EIGHT_BIT:
        return EXPECTED
    return tokens_of(make_engine(options=options, max_batch_size=1).generate(PROMPTS, EACH_PARAMS))


def interrupted_at_line(number, times=1, within="labkit"):
    """SIGINT when that many lines of such files have run in here; again at the lines that follow."""
    return at_lines(range(number, number + times), lambda: signal.raise_signal(signal.SIGINT), within)


def test_no_signal_is_handled_and_no_thread_runs_from_the_look_who_is_inside_to_the_return_of_outputs():
    """Python looks for one in calls and loops."""
    each = [(found.opname, found.argval) for found in dis.get_instructions(InferenceEngine.step)]
    behind = each[each.index(("LOAD_ATTR", "inside")) :]
    names = [name for name, _ in behind]
    assert ("STORE_ATTR", "outbox") in behind and "RETURN_VALUE" in names
    assert not any(name.startswith(("CALL", "JUMP")) for name in names)


def lines_of(options):
    """How many lines of labkit a run takes, as the tests below count them."""
    engine = make_engine(options=options, **PRESSED)
    with at_lines((), None) as lines:
        engine.generate(PROMPTS, EACH_PARAMS)
    return lines.count


@pytest.mark.slow
@on_every_engine
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
    expected = expected_of(options)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == expected
    outputs += run(engine)
    assert tokens_by_request(outputs) == {other: expected[0]}
    assert_no_block_is_lost(engine)


def test_an_interrupt_ends_generate_after_the_step_in_which_it_came():
    engine = make_engine()
    with pytest.raises(KeyboardInterrupt), interrupted_at_line(300):
        engine.generate(PROMPTS, EACH_PARAMS)
    assert engine.stats().counters.steps == 1


@pytest.mark.slow
@on_every_engine
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
    assert [handed_out[i] for i in ids] == expected_of(options)
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


def interrupted_in_the_guard(call, number, times=1):
    """Call with SIGINT at these lines of the guard: what it raised, if the handler is back, if one came."""
    before, raised = signal.getsignal(signal.SIGINT), None
    with interrupted_at_line(number, times, within=guard_module.__file__) as lines:
        try:
            call()
        except BaseException as error:
            raised = type(error)
    after = signal.signal(signal.SIGINT, before)
    return raised, after is before, lines.count >= number


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


# --- on a GPU --------------------------------------------------------------------------------------------


def gpu_engine(model, number):
    """Each prompt is prefilled by itself: the same numbers whoever else waits."""
    sizes = {"max_blocks_per_layer": 16, "max_batch_size": 3, "prefill_max_batch_size": 1}
    return make_engine(model, LADDER[number].options, device="cuda", **sizes)


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
