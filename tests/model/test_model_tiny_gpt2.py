"""The checkpoint in data/tiny-gpt2 is what its model card says."""

import csv
import importlib.util
import json
import random
import re
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2LMHeadModel

import labkit
from labkit.paths import ROOT

DIRECTORY = ROOT / "data" / "tiny-gpt2"
END = "<|endoftext|>"
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


@pytest.fixture(scope="module")
def curve() -> list[dict[str, float]]:
    with (DIRECTORY / "loss.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def table_rows(card: str) -> list[list[str]]:
    lines = [line for line in card.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_weight_is_used_and_none_is_missing():
    _, info = GPT2LMHeadModel.from_pretrained(DIRECTORY, output_loading_info=True)
    assert not any(info.values()), info


def test_every_tensor_is_stored_in_fp16():
    assert {tensor.dtype for tensor in load_file(DIRECTORY / "model.safetensors").values()} == {torch.float16}


def test_sizes(model, tokenizer, training):
    config = model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (6, 4, 4 * 64, 1024)
    assert config.vocab_size == len(tokenizer) == 2048
    assert config.activation_function == "gelu_new"
    assert model.num_parameters() == training["parameters"]
    assert sum(f.stat().st_size for f in DIRECTORY.iterdir() if f.is_file()) <= 12e6


def test_end_token(model, tokenizer):
    assert tokenizer.eos_token == tokenizer.bos_token == END
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id


@pytest.mark.parametrize(
    "text", ["", " ", "O Romeo,\n\n  wherefore?", "naïve café – Ωμέγα 日本語 🎭\t\r\n", "\x00ÿ"]
)
def test_the_tokenizer_gives_any_text_back(tokenizer, text):
    assert tokenizer.backend_tokenizer.model.dropout is None
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_card_quotes_training_json(card, training):
    quoted = {(name, re.sub(r"(?<=\d),(?=\d)", "", value)) for name, value, *_ in table_rows(card)}
    for name in ("parameters", "training tokens", "validation tokens", "steps", "best step"):
        assert (name, str(training[name.replace(" ", "_")])) in quoted
    assert ("validation loss", f"{training['validation_loss_nats_per_token']} nats/token") in quoted
    assert ("validation loss", f"{training['validation_loss_bits_per_character']} bits/character") in quoted
    recipe = training["recipe"]
    assert f"step {training['steps']:,} of {recipe['max_steps']:,}" in card
    assert f"Dropout {recipe['dropout']}. BPE dropout {recipe['bpe_dropout']}, falling" in card
    left_out = recipe["bpe_dropout"] * (1 - training["best_step"] / recipe["max_steps"])
    assert f"had fallen to about {left_out:.2f}" in card
    assert training["torch"] in card
    assert training["gpu"].removesuffix(" HBM3") in card


def test_the_card_quotes_the_loss_curve(card, curve):
    rows = {(row["step"], row["train_loss"], row["val_loss"]) for row in curve}
    quoted = [tuple(map(float, row)) for row in table_rows(card) if len(row) == 3 and row[0].isdigit()]
    assert len(quoted) > 5
    assert set(quoted) <= rows
    best = min(curve, key=lambda row: row["val_loss"])
    tail = [row["val_loss"] for row in curve if row["step"] > best["step"]]
    assert f"{min(tail):.4f} and {max(tail):.4f}" in card


def test_the_card_quotes_samples_that_were_drawn(card):
    samples = (DIRECTORY / "samples.txt").read_text(encoding="utf-8")
    assert samples.count("--- prompt") == 9
    quoted = re.findall(r"Prompt `([^`]*)`, seed (\d)[^\n]*\n\n```text\n(.*?)\n```", card, re.DOTALL)
    assert len(quoted) == 3
    for prompt, seed, text in quoted:
        after = next(
            s for s in samples.split("--- prompt ") if re.match(rf"'{prompt}(\\n)?', seed {seed}\n", s)
        )
        assert text.strip() == after.split("\n", 1)[1].strip()


def test_the_loss_curve_ends_where_it_no_longer_falls(curve, training):
    best = min(curve, key=lambda row: row["val_loss"])
    assert best["step"] == training["best_step"]
    assert curve[-1]["step"] == training["steps"] > best["step"]
    assert all(row["val_loss"] > best["val_loss"] for row in curve if row["step"] > best["step"])
    recipe = training["recipe"]
    assert training["steps"] - best["step"] == recipe["patience"] * recipe["eval_every"]
    assert best["val_loss"] == pytest.approx(training["validation_loss_nats_per_token"], abs=1e-3)


def test_the_scripts_defaults_are_the_recipe(training, monkeypatch):
    spec = importlib.util.spec_from_file_location("train_tiny_gpt2", DIRECTORY / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["train.py", "CORPUS.txt", "--device", "cuda"])
    defaults = vars(script.parse_args())
    assert {k: v for k, v in defaults.items() if k not in ("corpus", "out")} == training["recipe"]


@torch.no_grad()
def loss(model, tokenizer, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt").input_ids
    return model(ids, labels=ids).loss.item()


def test_it_prefers_shakespeare_to_his_words_shuffled(model, tokenizer):
    words = PASSAGE.split(" ")
    random.Random(0).shuffle(words)
    assert loss(model, tokenizer, PASSAGE) < loss(model, tokenizer, " ".join(words)) - 1


def test_labkit_loads_it(model, tokenizer):
    ours = labkit.load_model(DIRECTORY)
    assert torch.equal(ours.network.wte.weight, model.transformer.wte.weight)
    assert ours.tokenizer.encode(PASSAGE) == tokenizer(PASSAGE).input_ids
    assert ours.config.eos_token_id == tokenizer.eos_token_id
