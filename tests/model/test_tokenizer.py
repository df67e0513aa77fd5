"""Text to ids and back, against transformers' tokenizer."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, GPT2Tokenizer

from labkit.errors import CheckpointError, RequestError
from labkit.model.tokenizer import LibraryTokenizer, WordTokenizer
from labkit.paths import ROOT

TINY = ROOT / "data/tiny-gpt2"
OURS = LibraryTokenizer.from_directory(TINY, eos_token_id=0)
THEIRS = AutoTokenizer.from_pretrained(TINY)
VOCAB_SIZE = THEIRS.vocab_size

TEXTS = {
    "plain": "To be, or not to be: that is the question.",
    "spaces": "  two  spaces\n\n\ttab \r\n and a no-break\u00a0one ",
    "contractions": "I'll, we've, it's, DON'T",
    "accents, composed and not": "naïve café, cafe\u0301",
    "scripts": "Ελληνικά, русский, 日本語, العربية, हिन्दी",
    "emoji": "🙂👩‍👩‍👧🏽🇫🇷",
    "digits": "3.14159 1,000,000 ½ ٣",
    "control characters": "a\x00b\x7f\x1b[0m\u200b\ufeff",
    "a special token": "before<|endoftext|>after <|endoftext|>",
    "a replacement character": "\ufffd",
    "nothing": "",
}


def hf_decode(token_ids: list[int]) -> str:
    return THEIRS.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def assert_tokenizes_like_transformers(text: str) -> None:
    token_ids = OURS.encode(text)
    assert token_ids == THEIRS.encode(text, add_special_tokens=False)
    assert OURS.decode(token_ids) == hf_decode(token_ids)


def test_ids_and_text_equal_transformers():
    for text in TEXTS.values():
        assert_tokenizes_like_transformers(text)


@given(st.text())
def test_ids_and_text_equal_transformers_for_any_text(text: str):
    assert_tokenizes_like_transformers(text)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40))
def test_any_ids_decode_as_transformers_decodes_them(token_ids: list[int]):
    assert OURS.decode(token_ids) == hf_decode(token_ids)


def test_a_special_token_and_an_id_past_the_vocabulary_are_no_text():
    assert OURS.decode([OURS.eos_token_id, *OURS.encode("ab"), VOCAB_SIZE, VOCAB_SIZE + 900]) == "ab"


# --- other files -----------------------------------------------------------------------------------


def tokenizer_json() -> dict:
    return json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))


def write_tokenizer_json(directory: Path, **changes: object) -> LibraryTokenizer:
    content = json.dumps(tokenizer_json() | changes)
    (directory / "tokenizer.json").write_text(content, encoding="utf-8")
    return LibraryTokenizer.from_directory(directory, eos_token_id=0)


def write_older_files(directory: Path) -> None:
    bpe = tokenizer_json()["model"]
    (directory / "vocab.json").write_text(json.dumps(bpe["vocab"]), encoding="utf-8")
    merges = "\n".join(["#version: 0.2", *map(" ".join, bpe["merges"])])
    (directory / "merges.txt").write_text(merges + "\n", encoding="utf-8")


def test_vocab_json_and_merges_txt_give_the_same_ids_and_text(tmp_path: Path):
    """GPT-2's older two files."""
    write_older_files(tmp_path)
    older = LibraryTokenizer.from_directory(tmp_path, eos_token_id=0)
    assert older.vocab_size == OURS.vocab_size == VOCAB_SIZE
    for text in TEXTS.values():
        token_ids = older.encode(text)
        assert token_ids == OURS.encode(text) and older.decode(token_ids) == OURS.decode(token_ids)


def test_a_prompt_is_neither_cut_nor_padded_whatever_the_file_was_saved_with(tmp_path: Path):
    cutting = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    tokenizer = write_tokenizer_json(tmp_path, truncation=cutting, padding=padding)
    for text in TEXTS.values():
        assert tokenizer.encode(text) == OURS.encode(text)


def test_a_prompt_begins_as_the_checkpoint_wants_and_nothing_is_put_behind_it(tmp_path: Path):
    around = tokenizer_json()["post_processor"] | {
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        ],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    tokenizer = write_tokenizer_json(tmp_path, post_processor=around)
    assert tokenizer._backend.encode("ab").ids == [0, *OURS.encode("ab"), 0]
    assert tokenizer.encode("ab") == [0, *OURS.encode("ab")]
    assert tokenizer.encode("ab", begins=False) == OURS.encode("ab")


def test_tokens_added_by_a_fine_tune_are_text_unless_they_are_special(tmp_path: Path):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    added = [
        *tokenizer_json()["added_tokens"],
        plain | {"id": VOCAB_SIZE, "content": "<the user>"},
        plain | {"id": VOCAB_SIZE + 1, "content": "<tool>", "special": True},
    ]
    tokenizer = write_tokenizer_json(tmp_path, added_tokens=added)
    token_ids = tokenizer.encode("ab<the user>cd<tool>ef")
    assert {VOCAB_SIZE, VOCAB_SIZE + 1} < set(token_ids)
    assert tokenizer.decode(token_ids) == "ab<the user>cdef"
    assert tokenizer.vocab_size == VOCAB_SIZE + 2


ADDED = {"<the user>": VOCAB_SIZE, "<tool>": VOCAB_SIZE + 1}
DECODER = {ADDED[token]: {"content": token, "special": token == "<tool>"} for token in ADDED}
OUTSIDE = {
    "a tokenizer's config": {"tokenizer_config.json": {"added_tokens_decoder": DECODER}},
    "a file of their own": {"added_tokens.json": ADDED, "special_tokens_map.json": {"pad_token": "<tool>"}},
}


@pytest.mark.parametrize("files", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("older", [False, True], ids=["tokenizer.json", "vocab.json"])
def test_tokens_outside_of_the_vocabulary_are_those_of_transformers(tmp_path: Path, files: dict, older: bool):
    write_older_files(tmp_path) if older else write_tokenizer_json(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = LibraryTokenizer.from_directory(tmp_path, 0), GPT2Tokenizer.from_pretrained(tmp_path)
    token_ids = ours.encode("ab<the user>cd<tool>ef")
    assert set(ADDED.values()) < set(token_ids)
    assert token_ids == theirs.encode("ab<the user>cd<tool>ef")
    assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True) == "ab<the user>cdef"
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<gap>": VOCAB_SIZE + 9}))
    with pytest.raises(CheckpointError, match=r"'<gap>' has the id \d+, which is not the next one"):
        LibraryTokenizer.from_directory(tmp_path, 0)


def test_a_text_that_has_no_tokens_is_refused(tmp_path: Path):
    words = {"type": "WordLevel", "vocab": {"to": 0, "be": 1}, "unk_token": "[UNK]"}
    tokenizer = write_tokenizer_json(
        tmp_path, model=words, pre_tokenizer={"type": "Whitespace"}, decoder=None, added_tokens=[]
    )
    assert tokenizer.decode(tokenizer.encode("to be")) == "to be"
    with pytest.raises(RequestError, match=r"the model's tokenizer cannot read the prompt: .*UNK"):
        tokenizer.encode("or not")


def test_merges_that_do_not_fit_the_vocabulary_are_damage(tmp_path: Path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\nx y\n")
    with pytest.raises(CheckpointError, match="cannot be used"):
        LibraryTokenizer.from_directory(tmp_path, eos_token_id=None)


# --- words -----------------------------------------------------------------------------------------

WORDS = WordTokenizer(50257, eos_token_id=50256)


def test_a_word_is_one_token_and_the_same_in_every_process():
    hello = 0xF7D18982 % WORDS.vocab_size  # the CRC-32 of "Hello"
    token_ids = WORDS.encode("Hello\n naïve\t🙂 Hello ")
    assert len(token_ids) == 4 and token_ids[0] == token_ids[3] == hello and len(set(token_ids)) == 3
    assert all(0 <= i < WORDS.vocab_size for i in token_ids)
    assert WORDS.encode("") == []


def test_word_ids_decode_to_their_numbers_and_the_end_of_text_to_nothing():
    assert WORDS.decode([7, 50256, 12]) == " w7 w12"
