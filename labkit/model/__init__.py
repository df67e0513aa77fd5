"""Language models in plain PyTorch, their checkpoints and their tokenizers."""

from labkit.model.checkpoint import load_model
from labkit.model.config import GPT2Config, ModelConfig
from labkit.model.decoder_weights import DecoderWeights, LinearWeights, NormWeights
from labkit.model.gpt2 import GPT2
from labkit.model.language_model import LanguageModel
from labkit.model.network import Attend, Network, Prefilled
from labkit.model.prefill_attention import PastKV

MADE_HERE = [
    name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)
]
__all__ = ["Attend", *MADE_HERE]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
