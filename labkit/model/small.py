"""A model that is made for tests: small, fast, and with no token that does not depend on all before it."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from labkit.model.checkpoint import random_network
from labkit.model.config import GPT2Config
from labkit.model.language_model import LanguageModel
from labkit.model.llama_config import LlamaConfig, LongContext, Qwen3Config
from labkit.model.tokenizer import WordTokenizer

VOCAB_SIZE = 256
# Two queries to a key, or three; 16 numbers wide are heads of 4, or of 6.
SMALL_LLAMA = LlamaConfig(VOCAB_SIZE, 64, 16, 24, 2, 4, 2, 4, long_context=LongContext(8.0, 1.0, 4.0, 32))
SMALL_QWEN3 = Qwen3Config(VOCAB_SIZE, 64, 16, 40, 2, 6, 2, 6, tie_word_embeddings=True)
SMALL_MODELS = {"small": None, "small-llama": SMALL_LLAMA, "small-qwen3": SMALL_QWEN3}  # behind "random:"
LONGEST = 1216  # tokens of a sequence of load_model("random:small"), for the longest request of a flood
SPREAD = 20  # times the usual initialization, at which attention looks at every token


def small_model(max_positions: int = 64, seed: int = 0, config: LlamaConfig | None = None) -> LanguageModel:
    """Two layers of random weights over 256 tokens, on the CPU in float32; no token ends a text.

    max_positions: the tokens of its longest sequence. The same seed gives the same weights.
    config: of another model than a GPT-2, such as SMALL_LLAMA.
    """
    name = "random:small"
    if config is None:
        gpt2 = GPT2Config(VOCAB_SIZE, max_positions, 16, 2, 2, tie_word_embeddings=False)
        network = random_network(gpt2, seed)
    else:
        name = f"random:small-{config.model_type}"
        network = random_network(replace(config, max_position_embeddings=max_positions), seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(SPREAD if parameter.dim() == 2 else 1)
    return LanguageModel(name, network, WordTokenizer(VOCAB_SIZE, None))


def save_small_checkpoint(directory: Path, kind: type[GPT2Config | LlamaConfig] = GPT2Config) -> None:
    """Write a small model as a checkpoint in Hugging Face's format, with both kinds of tokenizer files.

    Its tokens are the bytes, three pairs of letters, and the end of text. A Llama has a chat template, too.
    """
    pairs = ["t h", "th e", "T o"]
    tokens = [*sorted(ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in pairs), "<|endoftext|>"]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    V = len(vocab)
    gpt2 = GPT2Config(V, 32, 16, 2, 2, tie_word_embeddings=False, eos_token_id=V - 1)
    config = gpt2 if kind is GPT2Config else replace(SMALL_LLAMA, vocab_size=V, eos_token_id=V - 1)
    network = random_network(config, seed=0)
    stored = {name: weight.contiguous() for name, weight in network.stored_tensors().items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": [pair.split() for pair in pairs]}
    end = {"id": vocab[tokens[-1]], "content": tokens[-1], "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    parts = {"added_tokens": [end], "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    texts = {
        "config.json": json.dumps({"model_type": config.model_type, **config.to_hf()}),
        "tokenizer.json": json.dumps({"version": "1.0", **parts}),
        "vocab.json": json.dumps(vocab),
        "merges.txt": "\n".join(["#version: 0.2", *pairs]) + "\n",
    }
    if kind is LlamaConfig:
        template = "{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}"
        texts["tokenizer_config.json"] = json.dumps({"chat_template": template, "eos_token": tokens[-1]})
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    save_file(stored, directory / "model.safetensors")
