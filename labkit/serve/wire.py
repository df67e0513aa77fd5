"""What the server's two processes tell each other: JSON, a line a message, over a pair of sockets.

Such a pair has no address, so nobody else can reach it; and whoever is left alone reads its end at once.
"""

import contextlib
import json
import socket
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from labkit.engine import EngineStats
from labkit.engine.prompt import Limits
from labkit.engine.sampling import ScoredToken, TokenLogprobs
from labkit.engine.streaming.worker import Item
from labkit.errors import LabkitError, RequestError, StreamError
from labkit.model.chat import ChatTemplate, Voice
from labkit.model.tokenizer import LibraryTokenizer, Tokenizer, WordTokenizer

MOST_READ = 2**20  # bytes at a time


class Wire:
    """One end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._rest = b""  # the beginning of a message

    def receive(self, wait: bool) -> list[Any] | None:
        """The messages that are there; None when the other end is closed. wait: if nothing is
        there; of a message that has come only in part, the list is empty."""
        try:
            data = self.socket.recv(MOST_READ, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:  # the other process has died with something unread
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return list(map(json.loads, lines))

    def first(self) -> Any:
        """The first message, once all of it is there; None when the other end is closed."""
        messages: list[Any] | None = []
        while messages == []:
            messages = self.receive(wait=True)
        return messages[0] if messages else None

    def send(self, message: object) -> None:
        """Send a message, as soon as the other end has room for it. Nothing is raised where that is closed:
        the next `receive` tells."""
        with contextlib.suppress(OSError):
            self.socket.sendall(encoded(message))


def encoded(message: object) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


# --- what the engine's process says of itself ------------------------------------------------------------


def introduction(name: str, voice: Voice, limits: Limits, stats: EngineStats) -> dict[str, Any]:
    """The first message of the engine's process. name: the engine's, for people."""
    chat = voice.chat_template
    return {
        "name": name,
        "model": voice.name,
        "tokenizer": tokenizer_to_json(voice.tokenizer),
        "chat": None if chat is None else chat._asdict(),
        "limits": asdict(limits),
        "stats": asdict(stats),
    }


def read_voice(message: dict[str, Any]) -> Voice:
    """The model's voice, from an introduction."""
    chat = message["chat"]
    template = None if chat is None else ChatTemplate(**chat)
    return Voice(message["model"], tokenizer_of(message["tokenizer"]), template)


def tokenizer_to_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer as the other process makes it again: of one of the two kinds that `load_model` gives."""
    own = {"eos_token_id": tokenizer.eos_token_id}
    if isinstance(tokenizer, LibraryTokenizer):
        return own | {"library": tokenizer.to_json()}
    return own | {"vocab_size": tokenizer.vocab_size}


def tokenizer_of(raw: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a JSON form."""
    if "library" in raw:
        return LibraryTokenizer(BackendTokenizer.from_str(raw["library"]), raw["eos_token_id"])
    return WordTokenizer(**raw)


# --- what becomes of requests ----------------------------------------------------------------------------


class Made:
    """What requests' consumers get next, as columns.

    As a message it is [numbers, tokens, ends]: the numbers of requests, a token for each of them, as a list
    with its log probabilities if it has them, and for each request that has ended [its number, how it ended].
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.token_ids: list[int] = []
        self._ends: list[list[Any]] = []

    def __bool__(self) -> bool:
        return bool(self.numbers or self._ends)

    def add(self, number: int, item: Item) -> None:
        """Add what a request's consumer gets."""
        if item is None:  # it has left
            self._ends.append([number, None])
        elif isinstance(item, BaseException):
            self._ends.append([number, [type(item).__name__, str(item)]])
        else:
            token_ids, completion = item
            self.add_tokens(number, token_ids)
            if completion is not None:
                # What the other process does not know of it.
                reason, admitted = str(completion.finish_reason), completion.timing.admitted
                self._ends.append([number, [reason, completion.error, admitted]])

    def add_tokens(self, number: int, token_ids: Sequence[int]) -> None:
        """Add tokens that a request's consumer gets."""
        self.numbers += [number] * len(token_ids)
        self.token_ids += token_ids

    def take(self) -> list[Any]:
        """The message; nothing is left."""
        tokens = [each.logprobs if isinstance(each, ScoredToken) else each for each in self.token_ids]
        message = [self.numbers, tokens, self._ends]
        self.numbers, self.token_ids, self._ends = [], [], []
        return message


def token_of(raw: Any) -> int:
    if isinstance(raw, int):
        return raw
    token_id, logprob, top = raw
    return ScoredToken.of(TokenLogprobs(token_id, logprob, tuple((each, value) for each, value in top)))


def error_of(kind: str, said: str) -> LabkitError:
    """The error that ends a stream, from its JSON form."""
    return RequestError(said) if kind == RequestError.__name__ else StreamError(said)
