"""Lesson 10's gate: tokens read one step behind pass, and wrong ways are refused by what they break."""

import pytest
from gate_tests import gate_tests

from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.learn.lesson_10.readback import OneInFlight
from labkit.learn.lesson_10.traps import AsksWhoRuns

pytestmark = pytest.mark.slow


class Made(OneInFlight):
    """As the lesson's hints have it."""

    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class KeepsWhatCannotBeRead(Made):
    """Undoes the step whose read failed, and not the one after it."""

    def read(self, step, running):
        try:
            return step.read()
        except BaseException:
            step.cancel(running)
            raise


class ForgetsTheStepIfALaunchFails(OneInFlight):
    def next_tokens(self, running):
        step = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class LaunchesPastTheChecks(Made):
    """Launches by itself those that go on, whatever the device knows of them."""

    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        going = self.going_on(dict(running), frozenset(step.sessions))
        self.in_flight = self.decode_step.launch(going) if going else None
        return self.hand_out(step, self.read(step, running), running)


class HandsOutTheNewer(Made):
    def next_tokens(self, running):
        step = self.in_flight = self.in_flight or self.decode_step.launch(running)
        self.in_flight = self.launch_behind(step, running)
        return self.hand_out(self.in_flight or step, self.read(step, running), running)


class ForgetsWhatItLaunched(Made):
    def next_tokens(self, running):
        step = self.decode_step.launch(running)
        self.launch_behind(step, running)
        return self.hand_out(step, self.read(step, running), running)


class RequestsForRows(Made):
    def still_running(self, step, running):
        return [request for request in step.requests if request in running]


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
AT_A_LIMIT = (
    r"a limit counts the token in flight: step 6 is launched for request 1, whose last token of 2 is made or "
    r"in flight already\. .*`going_on`"
)
WRONG = {
    ReadAtOnce: r"the next step is launched before this one is read: step 1 is read while no other is in",
    KeepsWhatCannotBeRead: r"the host has counted every launch: request \d+ has \d+ tokens, of",
    AsksWhoRuns: TO_A_NEW_SESSION,
    ForgetsTheStepIfALaunchFails: r"a step stays in flight if the launch after it fails: .* Keep a step in",
    LaunchesPastTheChecks: r"OutOfBlocksError: layer 0 has no free block[^`]*`self.in_flight = self",
    HandsOutTheNewer: r"^readback raised TypeError: hand_out takes a step and the tokens of the same step",
    RequestsForRows: r"^readback raised TypeError: still_running returns numbers of rows, 0 to 1, not an",
    COUNTS_NOTHING_IN_FLIGHT: AT_A_LIMIT,
    COUNTS_ONE_FOR_ALL: r"every request that has a token to make is launched: step 5 is launched without",
    ForgetsWhatItLaunched: r"is_ahead says whether a step is in flight: it is False, .* Keep the step there",
}
RIGHT = (ReadOneBehind, BySession)


test_wrong_parts, test_right_parts = gate_tests("10", "readback", WRONG, RIGHT)
