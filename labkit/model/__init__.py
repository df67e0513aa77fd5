"""GPT-2 in plain PyTorch, its checkpoints and its tokenizer."""

from labkit.model.checkpoint import LanguageModel, load_model
from labkit.model.config import GPT2Config
from labkit.model.gpt2 import GPT2, PastKV, Prefilled

__all__ = ["GPT2", "GPT2Config", "LanguageModel", "PastKV", "Prefilled", "load_model"]
