"""The bytes of single tokens, joined, are the text's."""

from helpers import ByteTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from labkit.model.token_bytes import bytes_by_character, token_bytes
from labkit.model.tokenizer import LibraryTokenizer

TEXT = "To be, or not: é 😀\n  ¡±ÿ"


def pieces() -> LibraryTokenizer:
    """As Llama 2 has them: words with a mark for the space before them, and bytes for what is no word."""
    vocab = (
        {"<s>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)} | {"▁To": 257, "▁be": 258, "▁": 259}
    )
    vocab |= {"T": 260, "o": 261, "▁T": 262, "b": 263, "e": 264, "▁b": 265}
    merges = [("▁", "T"), ("▁T", "o"), ("▁", "b"), ("▁b", "e")]
    backend = Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return LibraryTokenizer(backend, 0)


def joined(tokenizer, text: str) -> bytes:
    return b"".join(token_bytes(tokenizer, each, not i) for i, each in enumerate(tokenizer.encode(text)))


def test_of_a_byte_level_vocabulary(tiny):
    assert joined(tiny.tokenizer, TEXT) == TEXT.encode()
    assert sorted(bytes_by_character().values()) == list(range(256))
    assert token_bytes(tiny.tokenizer, tiny.tokenizer.eos_token_id) == b"<|endoftext|>"


def test_of_pieces_with_bytes():
    tokenizer = pieces()
    assert joined(tokenizer, "To be é😀") == "To be é😀".encode()
    assert token_bytes(tokenizer, 258) == b" be" and token_bytes(tokenizer, 258, begins=True) == b"be"
    assert token_bytes(tokenizer, 259) == b" " and token_bytes(tokenizer, 259, begins=True) == b""
    assert token_bytes(tokenizer, 0) == b"<s>" and token_bytes(tokenizer, 1 + 0xE2) == b"\xe2"


def test_of_a_tokenizer_that_only_decodes():
    assert joined(ByteTokenizer(), "To be") == b"To be"
