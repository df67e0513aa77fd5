"""Token ids to text as they come, never half a character."""

import codecs
from collections.abc import Iterable

from labkit.model.tokenizer import Tokenizer


class TextDecoder:
    """Turns token ids into text piece by piece, holding back the bytes of an unfinished character.

    All pieces joined are the text of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete, beginning with bytes held back before."""
        return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, token_ids)))

    def finish(self) -> str:
        """The last piece: a replacement character if the tokens end inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)
