"""The checkpoint in data/tiny-gpt2 is what its model card says."""

import json
import re

from transformers import AutoTokenizer

from labkit.paths import ROOT

DIRECTORY = ROOT / "data" / "tiny-gpt2"
TRAINING = json.loads((DIRECTORY / "training.json").read_text())


def table_rows(card: str) -> list[list[str]]:
    lines = [line for line in card.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_sizes(tiny_hf):
    config, tokenizer = tiny_hf.config, AutoTokenizer.from_pretrained(DIRECTORY)
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (6, 4, 4 * 64, 1024)
    assert config.vocab_size == len(tokenizer) == 2048
    assert config.activation_function == "gelu_new"
    assert tiny_hf.num_parameters() == TRAINING["parameters"]
    assert tokenizer.eos_token_id == config.eos_token_id == tiny_hf.generation_config.eos_token_id
    assert sum(f.stat().st_size for f in DIRECTORY.iterdir() if f.is_file()) <= 12e6


def test_the_card_quotes_training_json():
    rows = table_rows((DIRECTORY / "README.md").read_text(encoding="utf-8"))
    quoted = {(name, re.sub(r"(?<=\d),(?=\d)", "", value)) for name, value, *_ in rows}
    for name in ("parameters", "training tokens", "validation tokens", "steps", "best step"):
        assert (name, str(TRAINING[name.replace(" ", "_")])) in quoted
    assert ("validation loss", f"{TRAINING['validation_loss_nats_per_token']} nats/token") in quoted
    assert ("validation loss", f"{TRAINING['validation_loss_bits_per_character']} bits/character") in quoted
