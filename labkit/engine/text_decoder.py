"""Token ids to text as they come: never half a character, and up to a stop string."""

from collections.abc import Iterable, Sequence

from labkit.model.tokenizer import Tokenizer

# A text whose end may still change: inside a character, whose bytes may be tokens of their own.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextDecoder:
    """Turns token ids into text piece by piece, holding back an unfinished character.

    All pieces joined are the text of all tokens, with any tokenizer. What a token adds can depend on the
    token before it, such as a space between two words. So the tokens of the piece before are decoded again
    with each new one, and what they had added is cut off. (One exception: a
    "ByteFallback" decoder takes a whole character back if bytes that are no UTF-8 follow it at once.)

    stop: strings, of which the first to come ends the text before it; from then on, `is_stopped`. Text that
        may become one of them is held back, too. One that ends next to half a character comes with its rest.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.is_stopped = False
        self._decode = tokenizer.decode
        self._stop = stop
        self._beginning = ""  # of a stop string, perhaps
        self._before: list[int] = []  # the tokens of the last piece
        self._new: list[int] = []  # those since

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete, with what was held back before."""
        if self._stop:  # token by token: text after a stop string must not hide it
            return "".join(self._push((token_id,)) for token_id in token_ids)
        return self._push(token_ids)

    def _push(self, token_ids: Iterable[int]) -> str:
        self._new += token_ids
        text = self._text()
        if not text or text.endswith(UNFINISHED):
            return ""
        self._before, self._new = self._new, []
        return self._before_stop(text) if self._stop else text

    def _before_stop(self, text: str) -> str:
        """What is certain to come before any stop string, after so much more text."""
        if self.is_stopped:
            return ""
        text = self._beginning + text
        before = text_before(text, self._stop)
        self.is_stopped = len(before) < len(text)
        certain = len(before) - (0 if self.is_stopped else num_begun(text, self._stop))
        self._beginning = before[certain:]
        return before[:certain]

    def stops_at(self, token_id: int) -> bool:
        """Whether the text has come to a stop string with this token, the next one."""
        self._push((token_id,))
        return self.is_stopped

    def finish(self) -> str:
        """The last piece: what was held back, with U+FFFD if the tokens end inside a character."""
        return "" if self.is_stopped else text_before(self._beginning + self._text(), self._stop)

    def _text(self) -> str:
        """What the new tokens add."""
        if not self._new:
            return ""
        return self._decode(self._before + self._new)[len(self._decode(self._before)) :]


def text_before(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the strings `stop` that is in it; all of it if none is."""
    return text[: min((place for place in map(text.find, stop) if place >= 0), default=len(text))]


def num_begun(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of one of the strings `stop`."""
    longest = min(len(text), max(map(len, stop)) - 1)
    sizes = range(longest, 0, -1)
    return next((n for n in sizes if any(string.startswith(text[-n:]) for string in stop)), 0)
