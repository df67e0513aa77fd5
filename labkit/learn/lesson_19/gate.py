"""Lesson 19: the gates of stop strings, of clients that leave, and of admission; step 3's is in `frames`."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import chain, count, repeat
from typing import Any

from labkit.checks import shown
from labkit.engine.text_decoder import num_begun, text_before
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, small_model
from labkit.learn.lesson_19.frames import drive
from labkit.learn.lesson_19.parts import Admit, Leaving, MakeStops, Piece, Reply, Server, own_engine
from labkit.learn.steps import noted
from labkit.serve.replies import DONE, frame
from labkit.watch.replaced import replaced

NUM_DRAWN = 300  # calls of a part

# --- steps 1 and 2: stop strings -----------------------------------------------------------------------

LETTERS = "a.\nA"  # nobody may take a point for a pattern, strip the end of a line, or ignore case


def _drawn(rng: random.Random, num_pieces: int, longest: int) -> tuple[list[str], list[str]]:
    """Pieces of a text, and stop strings: of few letters, without one of the text's."""
    letters = rng.sample(LETTERS, 3)
    pieces = ["".join(rng.choices(letters, k=rng.randint(0, longest))) for _ in range(num_pieces)]
    stop = ["".join(rng.choices(letters[:2], k=rng.randint(1, 4))) for _ in range(rng.randint(1, 2))]
    return pieces, stop


def check_held(num_held: Callable[[str, Sequence[str]], int]) -> Report:
    """Whether a function says how much of a text's end may be the beginning of a stop string."""

    def trial() -> None:
        rng = random.Random(0)
        drawn = [_drawn(rng, 1, 6) for _ in range(NUM_DRAWN)]
        calls = [(text, stop) for (text,), stop in drawn if not any(string in text for string in stop)]
        for text, stop in sorted(calls, key=lambda call: len(repr(call))):
            found, expected = num_held(text, [*stop]), num_begun(text, stop)
            if found != expected:
                end = text[len(text) - expected :]
                longer = next(string for string in stop if string.startswith(end))
                raise BrokenContract(
                    f"only text that may begin a stop string is held: num_held({text!r}, {stop}) gave "
                    f"{shown(found)}, expected {expected}. {end!r} is its longest end with which a stop "
                    f"string begins: the rest of {longer!r} may follow."
                )

    return noted(proven("num_held", [trial], f"{NUM_DRAWN} random texts."), "19", "num_held", num_held)


def check_stops(make: MakeStops, num_held: Callable[[str, Sequence[str]], int]) -> Report:
    """Whether a class shows a text up to a stop string as soon as it may, and nothing of the string."""

    def trial() -> None:
        rng = random.Random(1)
        draws = [_drawn(rng, rng.randint(1, 4), 4) for _ in range(NUM_DRAWN)]
        for pieces, stop in sorted(draws, key=lambda draw: len(repr(draw))):
            _check_pieces(make([*stop]), pieces, stop)

    report = Report(False, "stops: fill in step 1 first.", before="step 1")
    if check_held(num_held).ok:
        report = proven("stops", [trial], f"{NUM_DRAWN} random texts in random pieces.")
    return noted(report, "19", "MyStops", make)


def _check_pieces(stops: Any, pieces: Sequence[str], stop: Sequence[str]) -> None:
    """Raise BrokenContract unless after each piece exactly that is shown which may be."""
    found, text = "", ""
    for number, piece in enumerate(pieces, 1):
        text += piece
        before = text_before(text, stop)
        is_over = before != text
        expected = before if is_over else text[: len(text) - num_begun(text, stop)]
        found += stops.push(piece)
        if found == expected:
            continue
        holds, hint = "text is shown as soon as it may be", "Hold back what may begin a stop string, no more."
        if is_over:
            holds = "an answer ends before its first stop string"
            hint = "Look in what is held and the new text."
        elif len(found) > len(expected):
            holds = "half a stop string is never shown"
            hint = "What is at the end may be the beginning of one: hold it back."
        raise BrokenContract(
            f"{holds}: with stop={stop}, after the pieces {list(pieces[:number])} {found!r} is shown, "
            f"expected {expected!r}. {hint}"
        )
    found += stops.finish()
    if found != before:
        raise BrokenContract(
            f"nothing is lost at the end: with stop={stop}, of the pieces {list(pieces)} and `finish` "
            f"{found!r} is shown, expected {before!r}. If no stop string has come, what was held was text; "
            "if one has, it never was."
        )


# --- step 4: a client that leaves ----------------------------------------------------------------------

NUM_BEFORE, ENDLESS = 6, 50  # steps before a client leaves, and tokens of an answer that nobody waits for
PATIENCE = 60  # seconds, after which nothing more will come; no right part waits for them


def check_leaving(leaving: Leaving) -> Report:
    """Whether the requests of a client that has left are gone at once."""
    proof = "clients with 1 and 3 streams, and one of a running server, in the middle of its answer."
    trials = [partial(trial, leaving) for trial in (_closes_all_at_once, _leaves_in_its_answer)]
    return noted(proven("leaving", trials, proof), "19", "my_leaving", leaving)


class PlayedStream:
    """A stream that notes in `seen` when it is closed, and when its next text is waited for."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def close(self) -> None:
        self._seen.append(self)

    async def __anext__(self) -> str:
        self._seen.append("text")
        return "text"


def _closes_all_at_once(leaving: Leaving) -> None:
    for num_streams in (1, 3):
        seen: list[object] = []  # types of messages, and what was done to streams
        streams = [PlayedStream(seen) for _ in range(num_streams)]
        messages = chain(["http.request"] * (1 + num_streams), repeat("http.disconnect"))

        async def receive() -> dict[str, object]:
            seen.append(next(messages))  # noqa: B023
            return {"type": seen[-1]}  # noqa: B023

        drive(leaving(receive, streams))
        left = seen.index("http.disconnect") if "http.disconnect" in seen else len(seen)
        if any(stream in seen[:left] for stream in streams):
            raise BrokenContract(
                'a client that is there keeps its answer: a message of the type "http.request" came, and its '
                'stream was closed. Wait for "http.disconnect".'
            )
        if "text" in seen[left:]:
            raise BrokenContract(
                "a client that leaves frees its blocks within one step: a client had left, and its stream "
                'was asked for the next text. Close every stream as soon as "http.disconnect" comes, and '
                "wait for nothing else."
            )
        if open_ones := sum(stream not in seen for stream in streams):
            raise BrokenContract(
                f"all of a client's answers end when it leaves: {open_ones} of {num_streams} streams were "
                'not closed after "http.disconnect".'
            )


def _leaves_in_its_answer(leaving: Leaving) -> None:
    """After NUM_BEFORE steps the server's engine waits until the part has heard that its client left."""
    heard, steps = threading.Event(), count()

    async def heard_leaving(receive: Callable[[], Awaitable[Any]], streams: Sequence[Any]) -> None:
        async def hear() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                asyncio.get_running_loop().call_soon(heard.set)  # after what is done about it at once
            return message

        await leaving(hear, streams)

    def waiting(inner: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            if next(steps) >= NUM_BEFORE:
                heard.wait(PATIENCE)
            inner()

        return step

    engine = own_engine(small_model(), block_size=4, max_blocks_per_layer=64, prefix_cache=False)
    with Server(engine, leaving=heard_leaving) as server, replaced(server.streaming.worker, "step", waiting):
        stream = server.ask("1 2 3", ENDLESS, stream=True)
        next(iter(stream))
        stream.close()
        server.wait_until_idle()
        made = engine.stats().counters.generated_tokens
    if made > NUM_BEFORE + 2:
        raise BrokenContract(
            f"a client that leaves frees its blocks within one step: a client left after {NUM_BEFORE} steps "
            f'of its answer, and the engine made {made} tokens. Close every stream when "http.disconnect" '
            "comes."
        )


# --- step 5: admission ---------------------------------------------------------------------------------


def check_admit(admit: Admit) -> Report:
    """Whether a function answers 200, 429 or 400 as the load has it."""

    def trial() -> None:
        rng = random.Random(3)
        draws = [(rng.randint(0, 6), rng.randint(1, 6), rng.randint(1, 6)) for _ in range(NUM_DRAWN)]
        for unfinished, more, limit in sorted(draws, key=lambda draw: (draw[1] > draw[2], sum(draw))):
            unfinished = min(unfinished, limit)
            status = admit(unfinished, more, limit)
            expected, rule = 200, "what there is room for is let in"
            if more > limit:
                expected = 400
                rule = "what can never be served is refused for good, as 429 brings a client back"
            elif unfinished + more > limit:
                expected = 429
                rule = "a request for which there is no room now gets 429, before it begins"
            if status != expected:
                raise BrokenContract(
                    f"{rule}: with {unfinished} answers unfinished, {more} more asked for and a limit of "
                    f"{limit} it answers {shown(status)}, expected {expected}."
                )

    report = proven("admit", [trial], f"{NUM_DRAWN} random loads.")
    return noted(report, "19", "my_admit", admit)


# --- parts that are wrong, each in one thing that no quiet try would show -------------------------------


class LooksAtTheEnd:
    """it looks for a stop string at the end of the text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop, self.text, self.is_over = stop, "", False

    def push(self, text: str) -> str:
        self.text += text
        self.is_over = self.is_over or any(self.text.endswith(string) for string in self.stop)
        return text_before(text, self.stop) if self.is_over else text

    def finish(self) -> str:
        return ""


async def done_whatever_happens(pieces: AsyncIterator[Piece], reply: Reply) -> AsyncIterator[bytes]:
    """it sends [DONE] even after an error."""
    yield frame(reply.chunk({"role": "assistant", "content": ""}))
    try:
        async for text, completion in pieces:
            reason = None if completion is None else reply.reason(completion)
            yield frame(reply.chunk({"content": text}, reason))
            if completion is not None and reply.include_usage:
                yield frame(reply.usage(completion))
    except Exception as error:
        yield frame(reply.error(error))
    yield DONE


async def at_the_next_token(receive: Callable[[], Awaitable[dict[str, Any]]], streams: Sequence[Any]) -> None:
    """after the client has left, it waits for one more token before it closes a stream."""
    while (await receive())["type"] != "http.disconnect":
        pass
    for stream in streams:
        await anext(stream, None)
        stream.close()


def counts_what_is_there(unfinished: int, asked: int, limit: int) -> int:
    """it does not count what is asked for."""
    return 429 if unfinished >= limit else 200
