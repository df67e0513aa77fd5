"""Log probabilities in OpenAI's own types, with the text and the bytes of each token.

Every token of an answer has an entry: as many as `usage` counts, those that end the text among them.
"""

import codecs
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs
from pydantic import BaseModel

from labkit.engine import TokenLogprobs
from labkit.model.token_bytes import is_special, token_bytes
from labkit.model.tokenizer import Tokenizer

VERY_UNLIKELY = -9999.0  # OpenAI's way to say so: JSON has no infinity
MOST_SPELLED = 2**16  # tokens kept; each takes a few microseconds to find


class Spelling:
    """The bytes and the text of a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bytes_of = lru_cache(MOST_SPELLED)(partial(token_bytes, tokenizer))  # of (token_id, begins)
        self.is_special = lru_cache(MOST_SPELLED)(partial(is_special, tokenizer))

    def text_of(self, token_id: int, begins: bool, prefix: str = "") -> str:
        r"""The token's text; of bytes that are no UTF-8 by themselves, \xe2 for each, behind the prefix."""
        raw = self.bytes_of(token_id, begins)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def number(logprob: float) -> float:
    """A log probability as JSON has it."""
    return max(logprob, VERY_UNLIKELY)


class TextLogprobs:
    """The log probabilities of one answer of /v1/completions, asked for token after token."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0  # characters of the answer so far
        self._begins = True  # whether the next token is the first

    def of(self, tokens: Sequence[TokenLogprobs]) -> BaseModel:
        """The entries of the next tokens. Of tokens with the same text the likelier is shown, be it not the
        one that was picked; its text always is."""
        texts, offsets, tops = [], [], []
        for token_id, logprob, likeliest in tokens:
            texts.append(self._text_of(token_id))
            offsets.append(self._next_offset(token_id))
            top: dict[str, float] = {}
            for each, value in (*likeliest, (token_id, logprob)):
                top.setdefault(self._text_of(each), number(value))
            tops.append(top)
            self._begins = False
        logprobs = [number(each.logprob) for each in tokens]
        return Logprobs(tokens=texts, token_logprobs=logprobs, top_logprobs=tops, text_offset=offsets)

    def _next_offset(self, token_id: int) -> int:
        """Where in the answer the next token's text begins: behind the U+FFFD, which comes with it, of half a
        character before it."""
        special = self.spelling.is_special(token_id)
        raw = b"" if special else self.spelling.bytes_of(token_id, self._begins)
        more = self._text.decode(raw)
        self._length += len(more)
        try:
            return self._length - len(raw.decode())
        except UnicodeDecodeError:
            return self._length - len(more)

    def _text_of(self, token_id: int) -> str:
        return self.spelling.text_of(token_id, self._begins, "bytes:")


class ChatLogprobs(TextLogprobs):
    """The log probabilities of one answer of /v1/chat/completions, asked for token after token."""

    def of(self, tokens: Sequence[TokenLogprobs]) -> BaseModel:
        content = []
        for token_id, logprob, likeliest in tokens:
            top = [TopLogprob(**self._fields(*each)) for each in likeliest]
            own = self._fields(token_id, logprob)
            content.append(ChatCompletionTokenLogprob(**own, top_logprobs=top))
            self._begins = False
        return ChoiceLogprobs(content=content)

    def _fields(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = (of(token_id, self._begins) for of in (self.spelling.text_of, self.spelling.bytes_of))
        return {"token": text, "bytes": list(raw), "logprob": number(logprob)}
