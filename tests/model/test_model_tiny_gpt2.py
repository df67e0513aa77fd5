"""The checkpoint in data/tiny-gpt2 is what its model card says."""

import json
import random
import re

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from labkit.paths import ROOT

DIRECTORY = ROOT / "data" / "tiny-gpt2"
PASSAGE = """\
ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.
Arise, fair sun, and kill the envious moon,
Who is already sick and pale with grief,
That thou her maid art far more fair than she.
"""


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(DIRECTORY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DIRECTORY)


@pytest.fixture(scope="module")
def training() -> dict:
    return json.loads((DIRECTORY / "training.json").read_text())


@pytest.fixture(scope="module")
def card() -> str:
    return (DIRECTORY / "README.md").read_text(encoding="utf-8")


def table_rows(card: str) -> list[list[str]]:
    lines = [line for line in card.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_sizes(model, tokenizer, training):
    config = model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (6, 4, 4 * 64, 1024)
    assert config.vocab_size == len(tokenizer) == 2048
    assert config.activation_function == "gelu_new"
    assert model.num_parameters() == training["parameters"]
    assert tokenizer.eos_token_id == config.eos_token_id == model.generation_config.eos_token_id
    assert sum(f.stat().st_size for f in DIRECTORY.iterdir() if f.is_file()) <= 12e6


def test_the_card_quotes_training_json(card, training):
    quoted = {(name, re.sub(r"(?<=\d),(?=\d)", "", value)) for name, value, *_ in table_rows(card)}
    for name in ("parameters", "training tokens", "validation tokens", "steps", "best step"):
        assert (name, str(training[name.replace(" ", "_")])) in quoted
    assert ("validation loss", f"{training['validation_loss_nats_per_token']} nats/token") in quoted
    assert ("validation loss", f"{training['validation_loss_bits_per_character']} bits/character") in quoted


@torch.no_grad()
def loss(model, tokenizer, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt").input_ids
    return model(ids, labels=ids).loss.item()


def test_it_prefers_shakespeare_to_his_words_shuffled(model, tokenizer):
    words = PASSAGE.split(" ")
    random.Random(0).shuffle(words)
    assert loss(model, tokenizer, PASSAGE) < loss(model, tokenizer, " ".join(words)) - 1
