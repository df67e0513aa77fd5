"""The bytes of single tokens: what a text is made of where a character is several tokens."""

import re
from functools import cache

from labkit.model.tokenizer import LibraryTokenizer, Tokenizer

NO_TEXT = "\N{REPLACEMENT CHARACTER}"  # in place of bytes that are no UTF-8 by themselves
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how a vocabulary of pieces names a byte


def token_bytes(tokenizer: Tokenizer, token_id: int, begins: bool = False) -> bytes:
    """What a token adds to a text, as UTF-8: of a special token, which adds nothing, its name.

    begins: whether the text begins with it; then some tokenizers leave the space before a word out.
    """
    text = tokenizer.decode([token_id])
    if not begins:
        text = tokenizer.decode([token_id, token_id])[len(text) :]
    if (text and NO_TEXT not in text) or not isinstance(tokenizer, LibraryTokenizer):
        return text.encode()
    if not text and not is_special(tokenizer, token_id):  # a space, where the text begins
        return b""
    name = tokenizer.name_of(token_id) or ""
    if byte := BYTE.fullmatch(name):
        return bytes([int(byte[1], 16)])
    if text and all(character in bytes_by_character() for character in name):
        return bytes(bytes_by_character()[character] for character in name)
    return name.encode()


def is_special(tokenizer: Tokenizer, token_id: int) -> bool:
    """Whether a token adds nothing to any text."""
    return not tokenizer.decode([token_id, token_id])


@cache
def bytes_by_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as GPT-2 has it: a printable one
    for itself, and the others, in their order, for those that are not."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
