"""Text to token ids and back. A token is a run of bytes, so a stream can be cut at any character."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.implementations import ByteLevelBPETokenizer

from labkit.errors import CheckpointError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


class Tokenizer(Protocol):
    vocab_size: int
    eos_token_id: int | None

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for a special token."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


def byte_of_symbol() -> dict[str, int]:
    """GPT-2 writes each byte as one visible character (Radford et al., 2019); this is the way back."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in visible]
    symbols = {chr(b): b for b in visible}
    return symbols | {chr(256 + i): b for i, b in enumerate(hidden)}


def read_backend(directory: Path) -> BackendTokenizer | None:
    """From tokenizer.json, or vocab.json and merges.txt; None if there is neither."""
    file, vocab, merges = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if file.is_file():
        return BackendTokenizer.from_file(str(file))
    if vocab.is_file() and merges.is_file():
        pair = ByteLevelBPETokenizer(str(vocab), str(merges))
        pair.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
        return pair._tokenizer
    return None


class ByteLevelTokenizer:
    """A byte-level BPE tokenizer: tokenizer.json, or GPT-2's older vocab.json and merges.txt."""

    def __init__(self, backend: BackendTokenizer, eos_token_id: int | None) -> None:
        self._backend = backend
        self.eos_token_id = eos_token_id
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._byte = byte_of_symbol()

    @classmethod
    def from_directory(cls, directory: Path, eos_token_id: int | None) -> "ByteLevelTokenizer":
        """Raises CheckpointError if the directory has no tokenizer, or a damaged one or another kind."""
        try:
            backend = read_backend(directory)
        except Exception as error:  # tokenizers raises nothing narrower
            raise CheckpointError(f"the tokenizer in {directory} is damaged: {error}") from error
        if backend is None:
            raise CheckpointError(
                f"{directory} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"
            )
        if "ByteLevel" not in type(backend.decoder).__name__:
            raise CheckpointError(f"the tokenizer in {directory} is not GPT-2's kind (byte-level BPE)")
        # A tokenizer.json may hold what its last user set: prompts must not be cut or padded.
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, eos_token_id)

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._special:
            return b""
        symbols = self._backend.id_to_token(token_id)
        if symbols is None:  # a model may have more ids than its tokenizer
            return REPLACEMENT
        try:
            return bytes(self._byte[s] for s in symbols)
        except KeyError:  # an added token is stored as plain text
            return symbols.encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")


class WordTokenizer:
    """One id a word, by a hash: for random weights, whose text means nothing.

    It keeps what a benchmark needs of a tokenizer: "Hello" is one token and "Hello Hello" two.
    """

    def __init__(self, vocab_size: int, eos_token_id: int | None) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id

    def encode(self, text: str) -> list[int]:
        return [zlib.crc32(word.encode()) % self.vocab_size for word in re.findall(r"\S+", text)]

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == self.eos_token_id else f" w{token_id}".encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode()
