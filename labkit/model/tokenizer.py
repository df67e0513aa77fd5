"""Text to token ids and back."""

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.implementations import ByteLevelBPETokenizer

from labkit.checks import quoted, shown
from labkit.errors import CheckpointError, LabkitError, RequestError
from labkit.json_file import is_there, read_bytes, read_object

CHARACTERS = 16  # for each token of a limit: a text of no more is encoded in one piece
CONFIG_FILES = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
# The special tokens that have a name.
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    eos_token_id: int | None

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The token ids of a text; after the special ones that the checkpoint wants at the beginning, if it
        begins here."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens; bytes that are no UTF-8 become U+FFFD."""


def first_token_ids(
    text: str, tokenizer: Tokenizer, limit: int, begins: bool = True
) -> tuple[list[int], bool]:
    """The text's token ids, and whether they are all of them: one that has far more than `limit` is cut, for
    a tokenizer takes minutes for some ten million characters. begins: as of `Tokenizer.encode`.

    Raises RequestError for text that is not valid Unicode, or that the tokenizer cannot read.
    """
    encode = tokenizer.encode if begins else partial(tokenizer.encode, begins=False)
    num_characters = CHARACTERS * limit
    while True:
        beginning = text[:num_characters]
        try:
            beginning.encode()  # half of a surrogate pair is in no vocabulary
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error}") from None
        token_ids = encode(beginning)
        is_all = num_characters >= len(text)
        if is_all or len(token_ids) > 2 * limit:  # what follows can change how the last few are cut, no more
            return token_ids, is_all
        num_characters *= 2


@contextmanager
def refusing(kind: type[LabkitError], what: str) -> Iterator[None]:
    """Whatever the library raises inside of the block becomes an error of this kind: it has nothing narrower
    than Exception, and its panics are not even that, nor of a class that can be imported."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {quoted(error)}") from error


def read_backend(directory: Path) -> BackendTokenizer:
    """The tokenizer in tokenizer.json, or in vocab.json and merges.txt. Raises ValueError if these are
    missing, and what the library does if they are damaged."""
    file, *pair = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if is_there(file):
        return BackendTokenizer.from_str(read_bytes(file).decode())
    if all(map(is_there, pair)):
        vocab, merges = map(str, pair)
        backend = ByteLevelBPETokenizer(vocab, merges)
        backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
        return backend._tokenizer
    raise ValueError("it has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt")


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; of a checkpoint older than its added_tokens_decoder, with what other
    files do. Raises ValueError for a damaged one."""
    config, named, added = (read_object(directory / name) for name in CONFIG_FILES)
    if "added_tokens_decoder" not in config:
        config |= named
        special = special_tokens(config).values()
        ids = {token_id: {"content": token, "special": token in special} for token, token_id in added.items()}
        config["added_tokens_decoder"] = ids
    return config


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer's config names, by their names."""
    tokens = {name: config.get(name) for name in NAMES}
    texts = {name: each.get("content") if isinstance(each, dict) else each for name, each in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def add_tokens(backend: BackendTokenizer, config: dict[str, Any]) -> None:
    """Add the tokens that only a tokenizer's config has. Raises ValueError for one that gets another id."""
    added = {int(token_id): fields for token_id, fields in config["added_tokens_decoder"].items()}
    for token_id in sorted(added.keys() - backend.get_added_tokens_decoder().keys()):
        token = AddedToken(**added[token_id])
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise ValueError(f"{shown(token.content)} has the id {token_id}, which is not the next one")


class LibraryTokenizer:
    """A checkpoint's tokenizer, of any kind that the `tokenizers` library has."""

    def __init__(self, backend: BackendTokenizer, eos_token_id: int | None) -> None:
        self._backend = backend
        self.eos_token_id = eos_token_id
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = len(ids)
        self.num_ids = max(ids, default=-1) + 1  # more than entries, if some ids stand for nothing
        self._beginning = beginning_of(backend)

    @classmethod
    def from_directory(cls, directory: Path, eos_token_id: int | None) -> "LibraryTokenizer":
        """The tokenizer of a checkpoint, from tokenizer.json, or from GPT-2's older vocab.json and
        merges.txt.

        Raises CheckpointError if the directory has none or a damaged one.
        """
        with refusing(CheckpointError, f"the tokenizer in {directory} cannot be used"):
            backend = read_backend(directory)
            add_tokens(backend, read_tokenizer_config(directory))
        # It may hold what its last user set: prompts must not be cut, padded or split at random.
        backend.no_truncation()
        backend.no_padding()
        if isinstance(backend.model, models.BPE):
            backend.model.dropout = None
        return cls(backend, eos_token_id)

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._backend.to_str()

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The token ids of a text; if it begins here, after the special ones that the checkpoint wants at the
        beginning, such as Llama's. Raises RequestError for a text that has no tokens."""
        with refusing(
            RequestError, "the model's tokenizer cannot read the prompt"
        ):  # such as an unknown word
            token_ids = self._backend.encode(text, add_special_tokens=False).ids
        return [*self._beginning, *token_ids] if begins else token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=True)

    def name_of(self, token_id: int) -> str | None:
        """What the vocabulary calls a token; None for an id that stands for nothing."""
        return self._backend.id_to_token(token_id)


def beginning_of(backend: BackendTokenizer) -> list[int]:
    """The special tokens that a checkpoint's tokenizer puts before every text; what it puts behind is left
    out."""
    try:
        with refusing(RequestError, "it knows no a"):
            text, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    except RequestError:
        return []
    starts = (i for i in range(len(whole)) if text and whole[i : i + len(text)] == text)
    return whole[: next(starts, 0)]


class WordTokenizer:
    """A tokenizer with one id per word, by a hash: for random weights, whose text means nothing.

    It keeps what a benchmark needs of a tokenizer: "Hello" is one token and "Hello Hello" two.
    """

    def __init__(self, vocab_size: int, eos_token_id: int | None) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """One id per word between white space; two words may have the same id."""
        return [zlib.crc32(word.encode()) % self.vocab_size for word in re.findall(r"\S+", text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """A made-up word for each token id, after a space; nothing for the end token."""
        return "".join(f" w{token_id}" for token_id in token_ids if token_id != self.eos_token_id)
