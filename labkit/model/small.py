"""A model that is made for tests: small, fast, and with no token that does not depend on all before it."""

from dataclasses import replace

import torch

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
