"""Text to token ids and back. A token is a run of bytes, so a stream can be cut at any character."""

import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.implementations import ByteLevelBPETokenizer

from labkit.checks import is_whole, quoted, shown
from labkit.errors import CheckpointError
from labkit.json_file import check_regular, parse_json, read_bytes, read_json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
PANIC = "PanicException"  # of the backend, which gives its class no place to import it from


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    eos_token_id: int | None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; no bytes for a special token."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no UTF-8 become the replacement character."""


def byte_of_symbol() -> dict[str, int]:
    """The byte of each visible character with which GPT-2's vocabulary writes bytes (Radford et al.,
    2019)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in visible]
    symbols = {chr(b): b for b in visible}
    return symbols | {chr(256 + i): b for i, b in enumerate(hidden)}


def read_backend(directory: Path) -> BackendTokenizer:
    """The tokenizer in tokenizer.json, or in vocab.json and merges.txt. Raises ValueError if these are
    missing, damaged or not a byte-level BPE."""
    file, *pair = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if is_there(file):
        raw = read_bytes(file)
        check_kind(parse_json(file.name, raw))
        return BackendTokenizer.from_str(raw.decode())
    if all(map(is_there, pair)):
        vocab, merges = pair
        check_vocab(read_json(vocab))
        backend = ByteLevelBPETokenizer(str(vocab), str(merges))
        backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
        return backend._tokenizer
    raise ValueError("it has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt")


def is_there(path: Path) -> bool:
    """Whether there is a file of that name. Raises ValueError if it is something else than a regular file."""
    if not os.path.lexists(path):
        return False
    check_regular(path)
    return True


def check_kind(raw: object) -> None:
    """Raises ValueError unless a parsed tokenizer.json is a byte-level BPE that always splits text alike."""
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise ValueError("tokenizer.json has no model")
    model = raw["model"]
    if (kind := model.get("type", "BPE")) != "BPE":  # older files do not say it
        raise ValueError(f"its model is {shown(kind)}, not GPT-2's kind (byte-level BPE)")
    for part in ("pre_tokenizer", "decoder"):
        if not is_byte_level(raw.get(part)):
            raise ValueError(f"its {part} is not ByteLevel: it is not GPT-2's kind (byte-level BPE)")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"its model has {name} = {shown(model[name])}; GPT-2's has none")
    check_vocab(model.get("vocab"))


def check_vocab(vocab: object) -> None:
    """Raises ValueError unless it is an id for each token, of 32 bits: the backend cuts or skips others."""
    if not isinstance(vocab, dict):
        raise ValueError(f"its vocabulary is {shown(vocab)}, not an id for each token")
    for token, token_id in vocab.items():
        if not is_whole(token_id) or not 0 <= token_id < 2**32:
            raise ValueError(f"the id of {shown(token)} is {shown(token_id)}")


def is_byte_level(part: object) -> bool:
    """Whether a step of a tokenizer.json is ByteLevel, or a sequence of steps with ByteLevel among them."""
    if not isinstance(part, dict):
        return False
    if part.get("type") == "Sequence":
        steps: object = next((part[name] for name in ("pretokenizers", "decoders") if name in part), [])
        return isinstance(steps, list) and any(map(is_byte_level, steps))
    return part.get("type") == "ByteLevel"


class ByteLevelTokenizer:
    """A byte-level BPE tokenizer, as GPT-2 has one."""

    def __init__(self, backend: BackendTokenizer, eos_token_id: int | None) -> None:
        self._backend = backend
        self.eos_token_id = eos_token_id
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = len(ids)
        self.num_ids = max(ids, default=-1) + 1  # more than entries, if some ids stand for nothing
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._byte = byte_of_symbol()

    @classmethod
    def from_directory(cls, directory: Path, eos_token_id: int | None) -> "ByteLevelTokenizer":
        """The tokenizer of a checkpoint, from tokenizer.json, or from GPT-2's older vocab.json and
        merges.txt.

        Raises CheckpointError if the directory has none, a damaged one, or one of another kind.
        """
        try:
            backend = read_backend(directory)
        except ValueError as error:
            raise CheckpointError(f"the tokenizer in {directory} cannot be used: {error}") from error
        except BaseException as error:  # tokenizers raises nothing narrower, and its panics are no Exception
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise CheckpointError(f"the tokenizer in {directory} is damaged: {quoted(error)}") from error
        ids = Counter(backend.get_vocab(with_added_tokens=True).values())
        if doubled := [token_id for token_id, count in ids.items() if count > 1]:
            raise CheckpointError(f"the tokenizer in {directory} has two tokens with the id {doubled[0]}")
        # A tokenizer.json may hold what its last user set: prompts must not be cut or padded.
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, eos_token_id)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token: no bytes for a special token, the replacement character's for an unused
        id."""
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
        """The text of token ids; bytes that are no UTF-8 become the replacement character."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")


class WordTokenizer:
    """A tokenizer with one id per word, by a hash: for random weights, whose text means nothing.

    It keeps what a benchmark needs of a tokenizer: "Hello" is one token and "Hello Hello" two.
    """

    def __init__(self, vocab_size: int, eos_token_id: int | None) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id

    def encode(self, text: str) -> list[int]:
        """One id per word between white space; two words may have the same id."""
        return [zlib.crc32(word.encode()) % self.vocab_size for word in re.findall(r"\S+", text)]

    def token_bytes(self, token_id: int) -> bytes:
        """A made-up word with the id in it; no bytes for the end token."""
        return b"" if token_id == self.eos_token_id else f" w{token_id}".encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        """The made-up words of token ids, each behind a space."""
        return b"".join(map(self.token_bytes, token_ids)).decode()
