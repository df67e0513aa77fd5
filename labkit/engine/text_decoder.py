"""Token ids to text as they come, never half a character."""

import codecs
from collections.abc import Iterable

from labkit.model.tokenizer import Tokenizer


class TextDecoder:
    """Holds back the bytes of an unfinished character. All pieces joined are the text of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that is complete with these tokens."""
        return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, token_ids)))

    def finish(self) -> str:
        """What an unfinished character at the end leaves: a replacement character, or nothing."""
        return self._utf8.decode(b"", final=True)
