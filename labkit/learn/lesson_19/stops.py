"""Lesson 19, steps 1 and 2: stop strings, of which a stream never shows half."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.checks import shown
from labkit.engine.text_decoder import num_begun, text_before
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, small_model
from labkit.learn.lesson_19.parts import MakeStops, Server, own_engine
from labkit.learn.steps import noted

NUM_DRAWN = 300  # calls of a part
PROMPTS = ("1 2 3", "20 21 22 23")
NUM_TOKENS = 24


def check_held(num_held: Callable[[str, Sequence[str]], int]) -> Report:
    """Whether a function says how much of a text's end may be the beginning of a stop string."""
    trial = partial(_held_as_it_should, num_held)
    return noted(proven("num_held", [trial], f"{NUM_DRAWN} random texts."), "19", "num_held", num_held)


def _drawn_stops(rng: random.Random) -> tuple[str, ...]:
    return tuple("".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 2)))


def _held_as_it_should(num_held: Callable[[str, Sequence[str]], int]) -> None:
    rng = random.Random(0)
    drawn = [("".join(rng.choices("abc", k=rng.randint(0, 6))), _drawn_stops(rng)) for _ in range(NUM_DRAWN)]
    calls = [(text, stop) for text, stop in drawn if not any(string in text for string in stop)]
    for text, stop in sorted(calls, key=lambda call: len(repr(call))):
        found, expected = num_held(text, stop), num_begun(text, stop)
        if found != expected:
            raise BrokenContract(
                f"only text that may begin a stop string is held: num_held({text!r}, {stop}) gave "
                f"{shown(found)}, expected {expected}. {_why_held(text, stop, expected)}"
            )


def _why_held(text: str, stop: Sequence[str], expected: int) -> str:
    if not expected:
        return "No end of the text is the beginning of a stop string."
    end = text[-expected:]
    longer = next(string for string in stop if string.startswith(end))
    return f"{end!r} is its longest end with which a stop string begins: the rest of {longer!r} may follow."


def check_stops(make: MakeStops, num_held: Callable[[str, Sequence[str]], int]) -> Report:
    """Whether a class shows all of a text up to a stop string, as soon as it may, and nothing of the string:
    on random texts, and in a stream of a running server."""
    if not check_held(num_held).ok:
        return noted(Report(False, "stops: fill in step 1 first.", before="step 1"), "19", "MyStops", make)
    proof = f"{NUM_DRAWN} random texts in random pieces, and {2 * len(PROMPTS)} streams over HTTP."
    report = proven("stops", [partial(_stops_in_pieces, make), partial(_stops_over_http, make)], proof)
    return noted(report, "19", "MyStops", make)


def _stops_in_pieces(make: MakeStops) -> None:
    rng = random.Random(1)
    draws = []
    for _ in range(NUM_DRAWN):
        pieces = ["".join(rng.choices("abc", k=rng.randint(0, 4))) for _ in range(rng.randint(1, 4))]
        draws.append((pieces, _drawn_stops(rng)))
    for pieces, stop in sorted(draws, key=lambda draw: len(repr(draw))):
        _check_pieces(make, pieces, stop)


def _check_pieces(make: MakeStops, pieces: Sequence[str], stop: tuple[str, ...]) -> None:
    """Raise BrokenContract unless after each piece exactly that is shown which may be."""
    stops, shown_so_far, text = make(stop), "", ""
    for number, piece in enumerate(pieces, 1):
        text += piece
        before = text_before(text, stop)
        is_over = before != text
        expected = before if is_over else text[: len(text) - num_begun(text, stop)]
        shown_so_far += _as_text(stops.push(piece), "push")
        if shown_so_far != expected:
            raise BrokenContract(_what_is_wrong(pieces[:number], stop, shown_so_far, expected, is_over))
    shown_so_far += _as_text(stops.finish(), "finish")
    if shown_so_far != before:
        raise BrokenContract(
            f"nothing is lost at the end: with stop={list(stop)}, of the pieces {list(pieces)} and `finish` "
            f"{shown_so_far!r} is shown, expected {before!r}. If no stop string has come, what was held "
            "was text; if one has, it never was."
        )


def _as_text(answer: object, name: str) -> str:
    if not isinstance(answer, str):
        raise BrokenContract(f"{name} returns text: it returned {shown(answer)}.")
    return answer


def _what_is_wrong(
    pieces: Sequence[str], stop: tuple[str, ...], found: str, expected: str, is_over: bool
) -> str:
    said = (
        f"with stop={list(stop)}, after the pieces {list(pieces)} {found!r} is shown, expected {expected!r}"
    )
    if is_over:
        return f"an answer ends before its first stop string: {said}. Look in what is held and the new text."
    if len(found) > len(expected):
        return (
            f"half a stop string is never shown: {said}. What is at the end may be the beginning of one: "
            "hold it back."
        )
    return f"text is shown as soon as it may be: {said}. Hold back what may begin a stop string, no more."


def _stops_over_http(make: MakeStops) -> None:
    with Server(own_engine(small_model()), stops=make) as server:
        for prompt in PROMPTS:
            text = _text_of(server, prompt)
            middle = len(text) // 2
            for stop in ([text[middle : middle + 5]], ["\0", text[middle] + "\0", text[middle + 2 :][:2]]):
                made = _text_of(server, prompt, stop=stop)
                if made != text_before(text, stop):
                    raise BrokenContract(
                        f"an answer ends before its first stop string: with stop={stop} a stream over HTTP "
                        f"ended with {made[-20:]!r}, expected {text_before(text, stop)[-20:]!r}."
                    )


def _text_of(server: Server, prompt: str, **options: Any) -> str:
    stream = server.ask(prompt, NUM_TOKENS, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
