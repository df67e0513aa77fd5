"""Lesson 19's gates refuse likely wrong parts of a server, each by what it breaks."""

import json

import pytest

from labkit.engine.text_decoder import num_begun, text_before
from labkit.learn.lesson_19 import traps
from labkit.learn.lesson_19.frames import check_frames
from labkit.learn.lesson_19.load import check_admit, check_leaving
from labkit.learn.lesson_19.stops import check_held, check_stops
from labkit.learn.lesson_19.traps import event

pytestmark = pytest.mark.slow


def named(part):
    return getattr(part, "__name__", "")


def refused(report, words):
    assert not report.ok and words in report.text, report.text


# --- stop strings --------------------------------------------------------------------------------------


def shortest_end(text, stop):
    ends = (n for n in range(1, num_begun(text, stop) + 1))
    return next((n for n in ends if any(string.startswith(text[-n:]) for string in stop)), 0)


def as_much_as_the_longest(text, stop):
    return min(len(text), max(map(len, stop)) - 1)


WRONG_HELD = {
    "nothing is held": (lambda text, stop: 0, "is its longest end with which a stop string begins"),
    "one stop string is looked at": (lambda text, stop: num_begun(text, stop[:1]), "expected"),
    "the shortest end": (shortest_end, "longest end"),
    "as much as the longest": (as_much_as_the_longest, "No end of the text"),
    "nothing is returned": (lambda text, stop: None, "gave None"),
}


@pytest.mark.parametrize(("num_held", "words"), WRONG_HELD.values(), ids=WRONG_HELD)
def test_a_wrong_count_of_what_is_held_is_refused(num_held, words):
    refused(check_held(num_held), words)


class Right:
    """As the package does it; the wrong ones differ in one thing."""

    def __init__(self, stop):
        self.stop, self.held, self.is_over = stop, "", False

    def hold(self, text):
        return num_begun(text, self.stop)

    def push(self, text):
        if self.is_over:
            return ""
        text = self.held + text
        before = text_before(text, self.stop)
        self.is_over = before != text
        certain = len(before) - (0 if self.is_over else self.hold(text))
        self.held = "" if self.is_over else before[certain:]
        return before[:certain]

    def finish(self):
        return self.held


class HoldsNothing(Right):
    def hold(self, text):
        return 0


class HoldsEverything(Right):
    def hold(self, text):
        return len(text)


class DropsAtTheEnd(Right):
    def finish(self):
        return ""


class GoesOn(Right):
    def push(self, text):
        self.is_over = False
        return super().push(text)


class ShowsWhatWasHeld(Right):
    def push(self, text):
        held, shown = self.held, super().push(text)
        self.held = self.held or (held if self.is_over else "")
        return shown


WRONG_STOPS = {
    traps.LooksAtTheEnd: "half a stop string is never shown",
    HoldsNothing: "half a stop string is never shown",
    HoldsEverything: "text is shown as soon as it may be",
    DropsAtTheEnd: "nothing is lost at the end",
    GoesOn: "an answer ends before its first stop string",
    ShowsWhatWasHeld: "nothing is lost at the end",
}


@pytest.mark.parametrize(("make", "words"), WRONG_STOPS.items(), ids=named)
def test_wrong_stop_strings_are_refused(make, words):
    refused(check_stops(make, num_begun), words)


def test_right_stop_strings_pass_and_wait_for_the_step_before():
    assert check_stops(Right, num_begun).ok
    refused(check_stops(Right, lambda text, stop: 0), "fill in step 1 first")


# --- frames --------------------------------------------------------------------------------------------


def frames(role=True, reason=None, text=event, done=True, errors=True, usage=True):
    async def written(pieces, reply):
        if role:
            yield event(reply.chunk({"role": "assistant", "content": ""}))
        ended = None
        try:
            async for piece, completion in pieces:
                ended = completion
                end = None if completion is None else reason or reply.reason(completion)
                yield text(reply.chunk({"content": piece}, end))
            if ended is None:
                return
            if usage or reply.include_usage:
                yield event(reply.usage(ended))
            if done:
                yield b"data: [DONE]\n\n"
        except Exception as error:
            if not errors:
                return
            yield event(reply.error(error))

    return written


async def read_first(pieces, reply):
    for frame in [frame async for frame in frames(usage=False)(pieces, reply)]:
        yield frame


async def tells_who_has_left(pieces, reply):
    has_left = False

    async def noted():
        nonlocal has_left
        async for text, ended in pieces:
            yield text, ended
        has_left = ended is None

    async for frame in frames(usage=False)(noted(), reply):
        yield frame
    if has_left:
        yield event(reply.error(RuntimeError("nobody is there")))


def not_asynchronous(pieces, reply):
    return [event(reply.chunk({"role": "assistant"}))]


WRONG_FRAMES = {
    "no role": (frames(role=False, usage=False), "the first frame says who speaks"),
    "always stop": (frames(reason="stop", usage=False), "finish_reason says how an answer ended"),
    "no JSON": (frames(text=lambda b: f"data: {b}\n\n".encode(), usage=False), "the text is all there"),
    "one end of line": (frames(text=lambda b: f"data: {json.dumps(b)}\n".encode()), "and an empty line"),
    "text, not bytes": (frames(text=lambda b: f"data: {json.dumps(b)}\n\n"), "a frame is bytes"),
    "no [DONE]": (frames(done=False, usage=False), "[DONE] is the last frame after a normal end"),
    "usage for everyone": (frames(), "usage comes last, and only if it is asked for"),
    "errors are swallowed": (frames(errors=False, usage=False), "an answer that fails ends with its error"),
    "read first": (read_first, "a stream streams"),
    "[DONE] after an error": (traps.done_whatever_happens, "[DONE] is for a normal end"),
    "no generator": (not_asynchronous, "frames are yielded"),
    "an error for nobody": (tells_who_has_left, "an error is for an answer that failed"),
}


@pytest.mark.parametrize(("write", "words"), WRONG_FRAMES.values(), ids=WRONG_FRAMES)
def test_wrong_frames_are_refused(write, words):
    refused(check_frames(write), words)


# --- clients that leave, and a full server --------------------------------------------------------------


async def never(receive, streams):
    await receive()


async def the_first_alone(receive, streams):
    while (await receive())["type"] != "http.disconnect":
        pass
    streams[0].close()


async def at_any_message(receive, streams):
    await receive()
    for stream in streams:
        stream.close()


async def at_every_message(receive, streams):
    left = False
    while not left:
        left = (await receive())["type"] == "http.disconnect"
        for stream in streams:
            stream.close()


WRONG_LEAVING = {
    never: "all of a client's answers end when it leaves",
    the_first_alone: "all of a client's answers end when it leaves: 2 of 3",
    at_any_message: "a client that is there keeps its answer",
    at_every_message: "a client that is there keeps its answer",
    traps.at_the_next_token: "a client that leaves frees its blocks within one step",
}


@pytest.mark.parametrize(("leaving", "words"), WRONG_LEAVING.items(), ids=named)
def test_who_does_not_notice_that_a_client_leaves_is_refused(leaving, words):
    refused(check_leaving(leaving), words)


WRONG_ADMIT = {
    "all are let in": (lambda unfinished, asked, limit: 200, "for which there is no room now gets 429"),
    "counts what is there": (traps.counts_what_is_there, "for which there is no room now gets 429"),
    "one too few": (lambda u, a, limit: 200 if u + a < limit else 429, "what there is room for is let in"),
    "come back for ever": (lambda u, a, limit: 200 if u + a <= limit else 429, "what can never be served"),
}


@pytest.mark.parametrize(("admit", "words"), WRONG_ADMIT.values(), ids=WRONG_ADMIT)
def test_wrong_admission_is_refused(admit, words):
    refused(check_admit(admit), words)
