"""A stream of tokens becomes a stream of whole characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine.text_decoder import TextDecoder
from labkit.model.tokenizer import ByteLevelTokenizer, WordTokenizer
from labkit.paths import ROOT

TOKENIZER = ByteLevelTokenizer.from_directory(ROOT / "data/tiny-gpt2", eos_token_id=0)
BYTE_TOKENS = {token: i for i in range(TOKENIZER.vocab_size) if len(token := TOKENIZER.token_bytes(i)) == 1}

token_ids_from_vocabulary = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40)
text_without_replacement = st.text(st.characters(exclude_characters="\ufffd", codec="utf-8"))


def a_byte_a_token(text: str) -> list[int]:
    return [BYTE_TOKENS[bytes([b])] for b in text.encode()]


def pieces(token_ids: list[int], size: int = 1) -> list[str]:
    """What comes out as tokens go in, `size` at a time; the last piece is what `finish` adds."""
    decoder = TextDecoder(TOKENIZER)
    pushed = [decoder.push(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
    return [*pushed, decoder.finish()]


@given(token_ids_from_vocabulary, st.integers(1, 5))
def test_the_pieces_of_any_tokens_join_to_the_text_of_all(token_ids: list[int], size: int):
    assert "".join(pieces(token_ids, size)) == TOKENIZER.decode(token_ids)


@given(text_without_replacement, st.integers(1, 5))
def test_of_valid_text_no_piece_is_ever_half_a_character(text: str, size: int):
    for token_ids in (TOKENIZER.encode(text), a_byte_a_token(text)):
        streamed = pieces(token_ids, size)
        assert "\ufffd" not in "".join(streamed)
        assert "".join(streamed) == TOKENIZER.decode(token_ids)
        assert streamed[-1] == ""


@pytest.mark.parametrize("character", ["é", "日", "🙂"])
def test_a_character_split_across_tokens_comes_whole_with_its_last_byte(character: str):
    num_bytes = len(character.encode())
    assert pieces(a_byte_a_token(character)) == [""] * (num_bytes - 1) + [character, ""]


def test_a_special_token_in_the_middle_of_a_character_leaves_it_whole():
    first, *rest = a_byte_a_token("🙂")
    assert pieces([first, TOKENIZER.eos_token_id, *rest]) == ["", "", "", "", "🙂", ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character():
    token_ids = a_byte_a_token("a🙂")[:-1]
    assert pieces(token_ids) == ["a", "", "", "", "\ufffd"]
    assert TOKENIZER.decode(token_ids) == "a\ufffd"


def test_a_byte_that_cannot_follow_ends_the_character_before_it():
    first, *_ = a_byte_a_token("🙂")
    (a,) = a_byte_a_token("a")
    assert pieces([first, a]) == ["", "\ufffda", ""]


@given(st.lists(st.integers(0, 99), max_size=9))
def test_words_stream_as_they_decode(token_ids: list[int]):
    words = WordTokenizer(100, eos_token_id=99)
    decoder = TextDecoder(words)
    streamed = "".join(decoder.push([i]) for i in token_ids) + decoder.finish()
    assert streamed == words.decode(token_ids)
