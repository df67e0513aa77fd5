"""Language models in plain PyTorch, their checkpoints and their tokenizers."""

from labkit.model.checkpoint import load_model
from labkit.model.config import GPT2Config
from labkit.model.decoder_weights import DecoderWeights, LinearWeights, NormWeights
from labkit.model.gpt2 import GPT2
from labkit.model.language_model import LanguageModel
from labkit.model.network import Attend, ModelConfig, Network, Prefilled
from labkit.model.prefill_attention import PastKV

__all__ = [
    "GPT2",
    "Attend",
    "DecoderWeights",
    "GPT2Config",
    "LanguageModel",
    "LinearWeights",
    "ModelConfig",
    "Network",
    "NormWeights",
    "PastKV",
    "Prefilled",
    "load_model",
]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
