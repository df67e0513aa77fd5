"""Lesson 10's gate: tokens read one step behind pass, and wrong ways are refused by what they break."""

import re

import pytest

from labkit import lab
from labkit.engine.overlap import NextTokens, ReadAtOnce, ReadOneBehind, tokens_left
from labkit.learn import not_attempted
from labkit.learn.lesson_10.readback import OneInFlight
from labkit.learn.lesson_10.traps import AsksWhoRuns

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("10")


class OneBehind:
    """Reads one step behind, and defers no bookkeeping."""

    def __init__(self, decode_step):
        self.decode_step, self.flight = decode_step, None

    @property
    def is_ahead(self):
        return self.flight is not None

    def next_tokens(self, running):
        step = self.flight = self.flight or self.decode_step.launch(running)
        self.flight = self.following(step, running)
        try:
            token_ids = step.read()
        except BaseException:
            self.cancel(step, running)
            raise
        return self.handed_out(step, token_ids, running)

    def following(self, step, running):
        in_flight = set(step.sessions)
        left = tokens_left(running, in_flight)
        going = {r: s for (r, s), n in zip(running.items(), left, strict=True) if n > 0}
        if not going or not self.has_room(going.values()):
            return None
        if not all(self.decode_step.slots.knows(s) for s in going.values() if s in in_flight):
            return None
        return self.decode_step.launch(going)

    def has_room(self, sessions):
        return sum(s.next_token_takes_block for s in sessions) <= self.decode_step.kv_manager.num_free_blocks

    def cancel(self, step, running):
        following, self.flight = self.flight, None
        for undone in (step, following):
            if undone is not None:
                undone.cancel(running)

    def handed_out(self, step, token_ids, running):
        rows = [b for b, r in enumerate(step.requests) if self.is_its(running.get(r), step.sessions[b])]
        return NextTokens([step.requests[b] for b in rows], [token_ids[b] for b in rows])

    def is_its(self, session, launched_for):
        return session is launched_for

    def defer(self, tokens, eos_token_id):
        pass

    def flush(self):
        pass

    def launch_first(self, running):
        pass

    def drop(self):
        self.flight = None


class HandsOutTwice(OneBehind):
    """Hands out a step's tokens once more if there is none behind it."""

    def handed_out(self, step, token_ids, running):
        times = 2 if self.flight is None else 1
        requests, token_ids, _ = super().handed_out(step, token_ids, running)
        return NextTokens(requests * times, token_ids * times)


class ReadsAgain(OneBehind):
    def handed_out(self, step, token_ids, running):
        return super().handed_out(step, step.read(), running)


class KeepsWhatItHasRead(OneBehind):
    def following(self, step, running):
        return super().following(step, running) or step


class ToWhoeverRuns(OneBehind):
    def handed_out(self, step, token_ids, running):
        pairs = list(zip(running, token_ids, strict=False))
        return NextTokens([request for request, _ in pairs], [token_id for _, token_id in pairs])


class ToTheNewSession(OneBehind):
    def is_its(self, session, launched_for):
        return session is not None


class ToThoseWhoHaveEnded(OneBehind):
    def handed_out(self, step, token_ids, running):
        pairs = zip(step.requests, step.sessions, strict=True)
        rows = [b for b, (r, s) in enumerate(pairs) if r.completion or running.get(r) is s]
        return NextTokens([step.requests[b] for b in rows], [token_ids[b] for b in rows])


class NeverFlushes(ReadOneBehind):
    def flush(self):
        pass


class FlushesTokensAlone(ReadOneBehind):
    def flush(self):
        if self._steady is not None:
            self._steady._num_launched = self._steady._counted_by_sessions
        super().flush()


class BehindTheLimit(OneBehind):
    def following(self, step, running):
        return self.decode_step.launch(running) if self.has_room(running.values()) else None


class DropsWhenSomebodyJoins(OneBehind):
    def next_tokens(self, running):
        if self.flight is not None and not {*running} <= {*self.flight.requests}:
            self.flight = None
        return super().next_tokens(running)


class DropsWhenItMustWait(OneBehind):
    """Forgets the step in flight when there is no room for the next one."""

    def following(self, step, running):
        if not self.has_room(running.values()):
            self.flight = None
            return self.decode_step.launch(running)
        return super().following(step, running)


class ThreeInFlight(OneBehind):
    more = None

    def following(self, step, running):
        behind, self.more = self.more or super().following(step, running), None
        if behind is not None and min(tokens_left(running)) > 3 and self.has_room(running.values()):
            self.more = self.decode_step.launch(running)
        return behind


class ReadsTheNewest(OneBehind):
    def next_tokens(self, running):
        step = self.flight = self.flight or self.decode_step.launch(running)
        newest = self.following(step, running)
        if newest is not None:
            step, self.flight = newest, step
        return self.handed_out(step, step.read(), running)


class LaunchesFirstAnyway(OneBehind):
    def launch_first(self, running):
        if running and self.has_room(running.values()):
            self.flight = self.decode_step.launch(running)


class KeepsWhatCannotBeRead(OneBehind):
    """Undoes the step whose read failed, and not the one behind it."""

    def cancel(self, step, running):
        step.cancel(running)


class NeverAhead(OneBehind):
    is_ahead = False


class AlwaysAhead(OneBehind):
    is_ahead = True


class WithoutRoom(OneBehind):
    def has_room(self, sessions):
        return True


class ReturnsNothing(OneBehind):
    def handed_out(self, step, token_ids, running):
        pass


class Unwritten(OneBehind):
    def next_tokens(self, running):
        not_attempted()


# --- parts made from what the lesson gives ---------------------------------------------------------


class Made(OneInFlight):
    """As the lesson's hints have it."""

    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class ForgetsTheStepIfALaunchFails(OneInFlight):
    def next_tokens(self, running):
        step = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class ReadsBeforeItLaunches(OneInFlight):
    def next_tokens(self, running):
        step = self.in_flight or self.decode_step.launch(running)
        token_ids = self.read(step, running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, token_ids, running)


class LaunchesEverybody(OneInFlight):
    def next_tokens(self, running):
        self.in_flight = self.in_flight or self.decode_step.launch(running)
        step, self.in_flight = self.in_flight, self.decode_step.launch(running)
        return self.hand_out(step, self.read(step, running), running)


class AllRows(Made):
    def still_running(self, step, running):
        return list(range(len(step.requests)))


class ThoseWhoHaveNotEnded(Made):
    def still_running(self, step, running):
        return [row for row, request in enumerate(step.requests) if request.completion is None]


class TakesWhoDoesNotRunForRunning(Made):
    def still_running(self, step, running):
        return [b for b, request in enumerate(step.requests) if running[request] is step.sessions[b]]


class ReadsPastTheUndoing(Made):
    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, step.read(), running)


class ForgetsWhatItLaunched(Made):
    def next_tokens(self, running):
        step = self.decode_step.launch(running)
        self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class AsksForSessionsAmongRequests(Made):
    def still_running(self, step, running):
        return [row for row, session in enumerate(step.sessions) if session in running]


class RequestsForRows(Made):
    def still_running(self, step, running):
        return [request for request in step.requests if request in running]


class TruthForRows(Made):
    def still_running(self, step, running):
        return [request in running for request in step.requests]


class HandsOutToNothing(Made):
    """Forgets the `return`."""

    def still_running(self, step, running):
        super().still_running(step, running)


class TakesFromWhatFlies(Made):
    def going_on(self, running, in_flight):
        in_flight.discard(next(iter(in_flight), None))
        return super().going_on(running, in_flight)


class ListsWhoGoesOn(Made):
    def going_on(self, running, in_flight):
        return list(super().going_on(running, in_flight))


def going_on_by(rule):
    """A part with a rule for who goes on."""

    class ByARule(Made):
        def going_on(self, running, in_flight):
            return {
                request: session for request, session in running.items() if rule(request, session, in_flight)
            }

    return ByARule


def made(request):
    return len(request.output_token_ids)


def limit(request):
    return request.params.max_new_tokens


COUNTS_NOTHING_IN_FLIGHT = going_on_by(lambda r, s, way: made(r) < limit(r))
COUNTS_ONE_FOR_ALL = going_on_by(lambda r, s, way: made(r) + 1 < limit(r))
ASKS_FOR_REQUESTS = going_on_by(lambda r, s, way: made(r) + (r in way) < limit(r))
ONE_TOO_MANY = going_on_by(lambda r, s, way: made(r) + (s in way) <= limit(r))
ONLY_WHO_FLIES = going_on_by(lambda r, s, way: s in way and made(r) + 1 < limit(r))
COUNTS_THE_PROMPT = going_on_by(lambda r, s, way: r.num_tokens + (s in way) < limit(r))


class NewestFirst(Made):
    """A right part: the device learns the new order of its rows."""

    def going_on(self, running, in_flight):
        return dict(reversed(super().going_on(running, in_flight).items()))


class TakesAwayWhoIsDone(Made):
    """A right part: the dict that it is given is its own."""

    def going_on(self, running, in_flight):
        for request in running.keys() - super().going_on(running, in_flight).keys():
            del running[request]
        return running


class OneRowAtATime(Made):
    """A right part: rows may come from a generator."""

    def still_running(self, step, running):
        yield from super().still_running(step, running)


class BySession(Made):
    """A right part."""

    def still_running(self, step, running):
        sessions = list(running.values())
        return [row for row, session in enumerate(step.sessions) if session in sessions]


GOES = r"a token goes to the session that it was launched for, or to nobody: new token \d+ of request \d+ is "
TO_A_NEW_SESSION = (
    rf"{GOES}\d+, expected none so far\. It is from row 1 of step \d+, which was launched for an earlier "
    r"session of request \d+: it was preempted, .* `still_running` says which rows of a step are handed out\."
)
MISSING = rf"{GOES}missing, expected \d+, from row \d of step \d+: the request still runs in the session of"
AT_A_LIMIT = (
    r"a limit counts the token in flight: step 6 is launched for request 1, whose last token of 2 is made or "
    r"in flight already\. .*`going_on`"
)
DROPPED = (
    r"at most two steps are in flight: step \d+ is launched, and somebody still waits for steps \d+ and \d+"
)
WRONG = {
    ReadAtOnce: r"the next step is launched before this one is read: step 1 is read with nothing behind it",
    HandsOutTwice: r"who has ended gets nothing more: request \d+ ended and got \[\d+\]\. What is",
    ReadsAgain: r"a step is read once: step \d is read again, or was undone or passed over\. Let go of",
    KeepsWhatItHasRead: r"is_ahead says whether a step is in flight: it is True, and no step is in",
    ToWhoeverRuns: GOES,
    ToTheNewSession: TO_A_NEW_SESSION,
    ToThoseWhoHaveEnded: r"who has ended gets nothing more: request \d+ ended and got \[\d+\]\. What is",
    NeverFlushes: GOES,
    FlushesTokensAlone: r"after a flush the host has counted every launch: request \d+ has \d+ tokens, of",
    BehindTheLimit: AT_A_LIMIT,
    DropsWhenSomebodyJoins: DROPPED,
    ThreeInFlight: DROPPED,
    ReadsTheNewest: r"step 2 is read, but step 1, for requests 0, 1, never was, .* Read the older step",
    LaunchesFirstAnyway: DROPPED,
    KeepsWhatCannotBeRead: r"after a flush the host has counted every launch: request \d+ has \d+ tokens, of",
    NeverAhead: r"is_ahead says whether a step is in flight: it is False, and step 2 for request 0 is in",
    AlwaysAhead: r"is_ahead says whether a step is in flight: it is True, and no step is in",
    WithoutRoom: r"^readback raised OutOfBlocksError: .*, at `return self\.decode_step\.launch\(going\)`$",
    Unwritten: r"^readback: not attempted yet\.$",
    AsksWhoRuns: TO_A_NEW_SESSION,
    ForgetsTheStepIfALaunchFails: r"a step stays in flight if the launch behind it fails: .* Keep a step in",
    ReadsBeforeItLaunches: r"the next step is launched before this one is read: .* First launch whoever",
    LaunchesEverybody: AT_A_LIMIT,
    AllRows: TO_A_NEW_SESSION,
    ThoseWhoHaveNotEnded: TO_A_NEW_SESSION,
    AsksForSessionsAmongRequests: MISSING,
    RequestsForRows: r"^readback raised TypeError: still_running returns numbers of rows, 0 to 1, not an",
    COUNTS_NOTHING_IN_FLIGHT: AT_A_LIMIT,
    COUNTS_ONE_FOR_ALL: r"whoever has a token to make is launched: step 5 is launched without request 1",
    ASKS_FOR_REQUESTS: AT_A_LIMIT,
    ONE_TOO_MANY: AT_A_LIMIT,
    ONLY_WHO_FLIES: r"whoever has a token to make is launched: step 5 is launched without request 1",
    COUNTS_THE_PROMPT: r"whoever has a token to make is launched: step 5 is launched without request 1",
    TruthForRows: r"^readback raised TypeError: still_running returns numbers of rows, 0 to 1, not True",
    HandsOutToNothing: r"^readback raised TypeError: still_running returns a list of rows, not None",
    TakesFromWhatFlies: r"^readback raised AttributeError: 'frozenset' object has no attribute 'discard'",
    ListsWhoGoesOn: r"^readback raised TypeError: going_on returns a dict like running, not an object",
    TakesWhoDoesNotRunForRunning: r"^readback raised KeyError: an object of type Request, at `return",
    ReadsPastTheUndoing: r"after a flush the host has counted every launch: .* `self\.read` does it\.",
    ForgetsWhatItLaunched: r"is_ahead says whether a step is in flight: it is False, .* Keep there what is",
    ReturnsNothing: r"next_tokens returns the tokens that are handed out: it returned None, expected",
}
RIGHT = (ReadOneBehind, OneBehind, Made, NewestFirst, TakesAwayWhoIsDone, OneRowAtATime, BySession)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(readback=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(readback=part)
    assert report.ok and report.text.startswith("readback: right."), report
