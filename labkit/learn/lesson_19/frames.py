"""Lesson 19, step 3: the frames of a stream."""

import random
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from functools import partial
from itertools import cycle, dropwhile, islice
from typing import Any

from labkit.checks import shown
from labkit.engine import Completion, FinishReason, Timing
from labkit.errors import StreamError
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven, small_model
from labkit.learn.lesson_19.parts import Piece, Reply, Server, Write, events, own_engine
from labkit.learn.steps import noted
from labkit.serve.errors import ApiError

NUM_DRAWN = 300  # answers
PROMPT, NUM_TOKENS = "1 2 3", 24
# What no frame may trip over: ends of lines, quotes, a frame's own words, letters of several bytes, nothing.
TEXTS = ("To be", "\n", "\n\n", '"', "é", "data: ", "[DONE]", "", " or", "\\n")
ENDS = {  # of an answer, and what is said of it
    "length": "ends at its limit",
    "stop": "ends at a stop string",
    "fails": "fails with an error",
    "fails at the end": 'ends with the finish_reason "error"',
    "leaves": "just ends, since its client has left",
}
FAILED = "a step of the engine failed"


def check_frames(write: Write) -> Report:
    """Whether a generator writes an answer as server-sent events: of drawn answers, and in a running server,
    to the openai client."""
    proof = f"{NUM_DRAWN} random answers, and 1 of a server to the openai client."
    report = proven("frames", [partial(_drawn_frames, write), partial(_frames_over_http, write)], proof)
    return noted(report, "19", "my_frames", write)


def _drawn_frames(write: Write) -> None:
    rng = random.Random(2)
    draws = [
        (rng.choices(TEXTS, k=rng.randint(1, 4)), end, rng.random() < 0.5)
        for end in islice(cycle(ENDS), NUM_DRAWN)
    ]
    for draw in sorted(draws, key=lambda draw: len(draw[0])):
        _check_frames(write, *draw)


def _completion(reason: str, error: str | None = None) -> Completion:
    timing, tokenizer = Timing(0.0, 0.0, ()), small_model().tokenizer
    return Completion(0, (1, 2, 3), (4, 5), FinishReason(reason), timing, tokenizer, error)


def _check_frames(write: Write, texts: Sequence[str], end: str, usage: bool) -> None:
    """Raise BrokenContract unless an answer of these pieces, with one of ENDS, has its frames in time."""
    what = f"for an answer in pieces {texts} that {ENDS[end]}"
    sent: list[bytes] = []
    late: list[str] = []  # what was not sent yet when the piece after it was asked for

    async def pieces() -> AsyncIterator[Piece]:
        for number, text in enumerate(texts):
            is_last = number == len(texts) - 1
            yield text, _completion(end) if is_last and end in ("length", "stop") else None
            if (so_far := "".join(texts[: number + 1])) != _content(events(b"".join(sent))):
                late.append(so_far)
        if end == "fails at the end":
            yield "", _completion("error", FAILED)
        if end == "fails":
            raise StreamError(FAILED)

    reply = Reply(usage)
    frames = write(pieces(), reply)
    try:
        while (made := drive(anext(frames, None))) is not None:
            _check_form(made, what)
            sent.append(made)
    except (StreamError, ApiError) as error:
        raise BrokenContract(
            f"an answer that fails ends with its error: {what}, the generator raised {shown(str(error))}. "
            "Catch it around all frames, and yield `reply.error(error)`."
        ) from error
    if reply.told is not None and reply.told.__traceback__ and FAILED not in str(reply.told):
        raise reply.told  # a mistake, which the reader's own `except` has caught
    _check_bodies(list(events(b"".join(sent))), what, texts, end, usage)
    if late:
        raise BrokenContract(
            f"a stream streams: {what}, the frame of {late[0]!r} had not been yielded when the next piece "
            "was asked for. Yield each piece's frame before you ask for another."
        )


def drive(awaitable: Awaitable[Any]) -> Any:
    """What an awaitable gives that waits for nothing; in a notebook an event loop runs already."""
    try:
        waits_for = next(awaitable.__await__())
    except StopIteration as done:
        return done.value
    raise BrokenContract(f"a part waits for what it is given, and for nothing else: {shown(waits_for)}.")


def _check_form(made: object, what: str) -> None:
    if not isinstance(made, bytes):
        raise BrokenContract(f"a frame is bytes: {what}, it yielded {shown(made)}. `event` makes them.")
    text = made.decode(errors="replace")
    if not text.startswith("data: ") or not text.endswith("\n\n") or "\n" in text[:-2]:
        raise BrokenContract(
            f"a frame is `data:`, a blank, one line, and an empty line: {what}, it yielded {shown(text)}."
        )


def _choices(bodies: Iterable[Any]) -> list[Any]:
    return [body["choices"][0] for body in bodies if isinstance(body, dict) and body.get("choices")]


def _content(bodies: Iterable[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in _choices(bodies))


# By what is looked at in an answer's frames, counted from 1: the contract, and how to keep it.
CONTRACTS = {
    "the first frame's role": (
        "the first frame says who speaks",
        'A client expects {"role": "assistant"} before any text.',
    ),
    "the text": ("the text is all there", "Yield a frame for each piece."),
    "[DONE]": (
        "[DONE] is for a normal end, where it is the last frame",
        "It is no JSON: `data: [DONE]`. A client takes what comes before it for all.",
    ),
    "the error": (
        "an answer that fails ends with its error, and no other",
        "Catch it around all frames, and yield `reply.error(error)`. If the client has left, the pieces end "
        "without a completion: yield nothing more.",
    ),
    "the usage": (
        "usage comes last, and only if it is asked for",
        "`reply.usage(completion)` is a frame between the text's last one and [DONE].",
    ),
    "finish_reason": (
        "finish_reason says how an answer ended, once, at the end",
        "`reply.reason(completion)` knows it, and raises the error of an answer that failed.",
    ),
}


def _check_bodies(bodies: Sequence[Any], what: str, texts: Sequence[str], end: str, usage: bool) -> None:
    choices, last, is_whole = _choices(bodies), len(bodies), end in ("length", "stop")
    frames = {n: body for n, body in enumerate(bodies, 1) if isinstance(body, dict)}
    errors = {n: body["error"] for n, body in frames.items() if "error" in body}
    if end.startswith("fails"):  # only one counts that says what has failed
        errors = {n: e for n, e in errors.items() if isinstance(e, dict) and FAILED in str(e)}
    reasons = [choice["finish_reason"] for choice in choices]
    found = {
        "the first frame's role": choices[0]["delta"].get("role") if choices else None,
        "the text": _content(bodies),
        "[DONE]": [n for n, body in enumerate(bodies, 1) if body == "[DONE]"],
        "the error": [*errors],
        "the usage": [n for n, body in frames.items() if body.get("usage")],
        "finish_reason": [*dropwhile(lambda reason: reason is None, reasons)],
    }
    expected = {
        "the first frame's role": "assistant",
        "the text": "".join(texts),
        "[DONE]": [last] * is_whole,
        "the error": [last] * end.startswith("fails"),
        "the usage": [last - 1] * (is_whole and usage),
        "finish_reason": [end] * is_whole,
    }
    for name, (contract, hint) in CONTRACTS.items():
        if found[name] != expected[name]:
            raise BrokenContract(
                f"{contract}: {what}, {name} is {found[name]!r}, expected {expected[name]!r}. {hint}"
            )


def _frames_over_http(write: Write) -> None:
    with Server(own_engine(small_model()), frames=write) as server:
        options = {"include_usage": True}
        chunks = list(server.ask(PROMPT, NUM_TOKENS, stream=True, stream_options=options))
        whole = server.ask(PROMPT, NUM_TOKENS)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    found, expected = (text, chunks[-1].usage), (whole.choices[0].message.content, whole.usage)
    if found != expected:
        raise BrokenContract(
            f"a stream is the answer in pieces: the openai client got {shown(found)}, in one piece "
            f"{shown(expected)}."
        )
