"""A small model as a checkpoint on the disk."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from labkit.model import GPT2Config
from labkit.model.checkpoint import random_network
from labkit.model.llama_config import LlamaConfig
from labkit.model.small import SMALL_LLAMA


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
