"""Lesson 19, steps 1 and 2: stop strings, of which a stream never shows half."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.checks import shown
from labkit.engine.text_decoder import num_begun, text_before
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, small_model
from labkit.learn.lesson_19.parts import MakeStops, Server, Stops, own_engine
from labkit.learn.steps import noted

NUM_DRAWN = 300  # calls of a part
PROMPTS = ("1 2 3", "20 21 22 23")
NUM_TOKENS = 24
LETTERS = "a.\nA"  # nobody may take a point for a pattern, strip the end of a line, or ignore case


def check_held(num_held: Callable[[str, Sequence[str]], int]) -> Report:
    """Whether a function says how much of a text's end may be the beginning of a stop string."""
    trial = partial(_held_as_it_should, num_held)
    return noted(proven("num_held", [trial], f"{NUM_DRAWN} random texts."), "19", "num_held", num_held)


def _drawn(rng: random.Random, num_pieces: int, longest: int) -> tuple[list[str], list[str]]:
    """Pieces of a text, and stop strings: of few letters, without one of the text's."""
    letters = rng.sample(LETTERS, 3)
    pieces = ["".join(rng.choices(letters, k=rng.randint(0, longest))) for _ in range(num_pieces)]
    stop = ["".join(rng.choices(letters[:2], k=rng.randint(1, 4))) for _ in range(rng.randint(1, 2))]
    return pieces, stop


def _held_as_it_should(num_held: Callable[[str, Sequence[str]], int]) -> None:
    rng = random.Random(0)
    drawn = [_drawn(rng, 1, 6) for _ in range(NUM_DRAWN)]
    calls = [(text, stop) for (text,), stop in drawn if not any(string in text for string in stop)]
    for text, stop in sorted(calls, key=lambda call: len(repr(call))):
        found, expected = num_held(text, [*stop]), num_begun(text, stop)
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
    draws = [_drawn(rng, rng.randint(1, 4), 4) for _ in range(NUM_DRAWN)]
    draws.sort(key=lambda draw: len(repr(draw)))
    made = [make([*stop]) for _, stop in draws]  # all at once, as a server has them
    for stops, (pieces, stop) in zip(made, draws, strict=True):
        _check_pieces(stops, pieces, stop)


def _check_pieces(stops: Stops, pieces: Sequence[str], stop: Sequence[str]) -> None:
    """Raise BrokenContract unless after each piece exactly that is shown which may be."""
    shown_so_far, text = "", ""
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
            f"nothing is lost at the end: with stop={stop}, of the pieces {list(pieces)} and `finish` "
            f"{shown_so_far!r} is shown, expected {before!r}. If no stop string has come, what was held "
            "was text; if one has, it never was."
        )


def _as_text(answer: object, name: str) -> str:
    if not isinstance(answer, str):
        raise BrokenContract(f"{name} returns text: it returned {shown(answer)}.")
    return answer


def _what_is_wrong(
    pieces: Sequence[str], stop: Sequence[str], found: str, expected: str, is_over: bool
) -> str:
    said = f"with stop={stop}, after the pieces {list(pieces)} {found!r} is shown, expected {expected!r}"
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
