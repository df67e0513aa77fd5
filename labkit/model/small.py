"""A model that is made for tests: small, fast, and with no token that does not depend on all before it."""

import torch

from labkit.model.checkpoint import LanguageModel, random_network
from labkit.model.config import GPT2Config
from labkit.model.tokenizer import WordTokenizer

VOCAB_SIZE = 256
SPREAD = 20  # times the usual initialization, at which attention looks at every token


def small_model(max_positions: int = 64, seed: int = 0) -> LanguageModel:
    """Two layers of random weights over 256 tokens, on the CPU in float32; no token ends a text.

    max_positions: the tokens of its longest sequence. The same seed gives the same weights.
    """
    config = GPT2Config(VOCAB_SIZE, max_positions, 16, 2, 2, tie_word_embeddings=False)
    network = random_network(config, seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(SPREAD if parameter.dim() == 2 else 1)
    return LanguageModel("random:small", network, WordTokenizer(VOCAB_SIZE, None))
