"""A stream of tokens becomes a stream of whole characters, whatever the tokenizer."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from labkit.engine.text_decoder import TextDecoder
from labkit.model.tokenizer import LibraryTokenizer
from labkit.paths import ROOT

BYTES = LibraryTokenizer.from_directory(ROOT / "data/tiny-gpt2", eos_token_id=0)
PIECES = ["<unk>", "▁", "▁To", "▁be", "▁or", "n", "o", "t", "é", "日本", "🙂", ",", "▁,"]


def unigram() -> LibraryTokenizer:
    backend = Backend(models.Unigram([(piece, -float(i)) for i, piece in enumerate(PIECES)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<end>"])
    return LibraryTokenizer(backend, eos_token_id=len(PIECES))


TOKENIZERS = {
    "byte-level BPE": BYTES,
    "Unigram": unigram(),
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
