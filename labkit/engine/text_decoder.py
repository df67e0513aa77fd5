"""Token ids to text as they come, never half a character."""

from collections.abc import Iterable

from labkit.model.tokenizer import Tokenizer

# A text whose end may still change: inside a character, whose bytes may be tokens of their own.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextDecoder:
    """Turns token ids into text piece by piece, holding back an unfinished character.

    All pieces joined are the text of all tokens, with any tokenizer. What a token adds can depend on the
    token before it, such as a space between two words. So the tokens of the piece before are decoded again
    with each new one, and what they had added is cut off. (One exception: a
    "ByteFallback" decoder takes a whole character back if bytes that are no UTF-8 follow it at once.)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._before: list[int] = []  # the tokens of the last piece
        self._new: list[int] = []  # those since

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete, with what was held back before."""
        return "".join(map(self._push, token_ids))

    def _push(self, token_id: int) -> str:
        self._new.append(token_id)
        text = self._text()
        if not text or text.endswith(UNFINISHED):
            return ""
        self._before, self._new = self._new, []
        return text

    def finish(self) -> str:
        """The last piece: U+FFFD if the tokens end inside a character, otherwise nothing."""
        return self._text()

    def _text(self) -> str:
        """What the new tokens add."""
        if not self._new:
            return ""
        return self._decode(self._before + self._new)[len(self._decode(self._before)) :]
