"""A stream of tokens becomes a stream of whole characters, whatever the tokenizer."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from labkit.engine.text_decoder import TextDecoder
from labkit.model.tokenizer import LibraryTokenizer, WordTokenizer
from labkit.paths import ROOT

BYTES = LibraryTokenizer.from_directory(ROOT / "data/tiny-gpt2", eos_token_id=0)
PIECES = ["<unk>", "▁", "▁To", "▁be", "▁or", "n", "o", "t", "é", "日本", "🙂", ",", "▁,"]


def word_level() -> LibraryTokenizer:
    words = ["[UNK]", "To", "be", "or", "not", "é", "日本", "🙂", ","]
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return LibraryTokenizer(backend, eos_token_id=None)


def unigram() -> LibraryTokenizer:
    backend = Backend(models.Unigram([(piece, -float(i)) for i, piece in enumerate(PIECES)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<end>"])
    return LibraryTokenizer(backend, eos_token_id=len(PIECES))


def llama_2() -> LibraryTokenizer:
    """As sentencepiece splits text: a space is a part of its word, and a byte without a piece has its own."""
    singles = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", "<s>", "</s>", *singles, "▁", "▁T", "T", "o", "▁To", "To", "▁be", "b", "e", "▁b", "é"]
    merges = [("▁", "T"), ("▁T", "o"), ("T", "o"), ("▁", "b"), ("▁b", "e")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return LibraryTokenizer(backend, eos_token_id=2)


TOKENIZERS = {
    "byte-level BPE": BYTES,
    "WordLevel": word_level(),
    "Unigram": unigram(),
    "words": WordTokenizer(100, eos_token_id=99),
}
token_ids_of_any = st.lists(st.integers(0, 10**6), max_size=40)
text_without_replacement = st.text(st.characters(exclude_characters="\ufffd", codec="utf-8"))


def a_byte_a_token(text: str) -> list[int]:
    symbols, _ = zip(*ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text), strict=True)
    return [BYTES._backend.token_to_id(symbol) for symbol in "".join(symbols)]


def pieces(token_ids: Sequence[int], size: int = 1, tokenizer=BYTES) -> list[str]:
    """What comes out as tokens go in, `size` at a time; the last piece is what `finish` adds."""
    decoder = TextDecoder(tokenizer)
    pushed = [decoder.push(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
    return [*pushed, decoder.finish()]


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(token_ids=token_ids_of_any, size=st.integers(1, 5))
def test_the_pieces_of_any_tokens_join_to_the_text_of_all(tokenizer, token_ids, size):
    token_ids = [i % tokenizer.vocab_size for i in token_ids]
    assert "".join(pieces(token_ids, size, tokenizer)) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["WordLevel", "Unigram"])
def test_words_come_one_by_one_with_the_space_before_them(name):
    tokenizer = TOKENIZERS[name]
    assert pieces(tokenizer.encode("To be 日本"), 1, tokenizer)[:2] == ["To", " be"]
    assert "".join(pieces(tokenizer.encode("To be 日本"), 1, tokenizer)) == "To be 日本"


@given(text_without_replacement, st.integers(1, 5))
def test_of_valid_text_no_piece_is_ever_half_a_character(text: str, size: int):
    for token_ids in (BYTES.encode(text), a_byte_a_token(text) if text else []):
        streamed = pieces(token_ids, size)
        assert "\ufffd" not in "".join(streamed)
        assert "".join(streamed) == BYTES.decode(token_ids)
        assert streamed[-1] == ""


@given(
    st.text(st.sampled_from("abcé🙂"), max_size=20),
    st.lists(st.text(st.sampled_from("abcé🙂"), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_text_ends_before_the_first_stop_string_however_it_is_split(text: str, stop: list[str], size: int):
    for token_ids in (BYTES.encode(text), a_byte_a_token(text) if text else []):
        texts = [BYTES.decode(token_ids[:n]) for n in range(len(token_ids) + 1)]
        whole = [t for t in texts if not t.endswith("\ufffd")]
        ended = next((t for t in whole if any(each in t for each in stop)), None)
        expected = text if ended is None else ended[: min(ended.find(s) for s in stop if s in ended)]
        decoder = TextDecoder(BYTES, stop)
        streamed = [decoder.push(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
        assert decoder.is_stopped == (ended is not None)
        assert "".join(streamed) + decoder.finish() == expected


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot():
    decoder = TextDecoder(BYTES, ["END", "\n\n"])
    streamed = [decoder.push(a_byte_a_token(each)) for each in ("aE", "N", "E", "x\n", "EN", "D", "b")]
    assert streamed == ["a", "", "EN", "Ex", "\n", "", ""] and decoder.is_stopped and decoder.finish() == ""


@pytest.mark.parametrize("character", ["é", "日", "🙂"])
def test_a_character_split_across_tokens_comes_whole_with_its_last_byte(character: str):
    num_bytes = len(character.encode())
    assert pieces(a_byte_a_token(character)) == [""] * (num_bytes - 1) + [character, ""]


def test_a_special_token_in_the_middle_of_a_character_leaves_it_whole():
    first, *rest = a_byte_a_token("🙂")
    assert pieces([first, BYTES.eos_token_id, *rest]) == ["", "", "", "", "🙂", ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character():
    token_ids = a_byte_a_token("a🙂")[:-1]
    assert pieces(token_ids) == ["a", "", "", "", "\ufffd"]
    assert BYTES.decode(token_ids) == "a\ufffd"


@given(st.text(st.sampled_from("To be or é日🙂\n")), st.integers(1, 5))
def test_text_that_a_llama_2_splits_into_pieces_and_bytes_comes_back(text: str, size: int):
    tokenizer = llama_2()
    token_ids = tokenizer.encode(text)
    streamed = pieces(token_ids, size, tokenizer)
    assert "".join(streamed) == tokenizer.decode(token_ids) == text
    assert "\ufffd" not in "".join(streamed)
