"""The published sizes of models that `load_model("random:...")` draws weights for."""

from labkit.model.config import GPT2Config, ModelConfig
from labkit.model.llama_config import LlamaConfig, LongContext, Qwen3Config

RANDOM_CONFIGS: dict[str, ModelConfig] = {
    "gpt2": GPT2Config(50257, 1024, 768, 12, 12, eos_token_id=50256),
    "gpt2-medium": GPT2Config(50257, 1024, 1024, 24, 16, eos_token_id=50256),
    "gpt2-large": GPT2Config(50257, 1024, 1280, 36, 20, eos_token_id=50256),
    "gpt2-xl": GPT2Config(50257, 1024, 1600, 48, 25, eos_token_id=50256),
    "smollm2-135m": LlamaConfig(
        49152, 8192, 576, 1536, 30, 9, 3, 64, 1e-5, 100000.0, tie_word_embeddings=True, eos_token_id=0
    ),
    "qwen3-0.6b": Qwen3Config(
        151936, 40960, 1024, 3072, 28, 16, 8, 128, 1e-6, 1e6, tie_word_embeddings=True, eos_token_id=151645
    ),
    "llama-3.2-1b": LlamaConfig(
        *(128256, 131072, 2048, 8192, 16, 32, 8, 64, 1e-5, 500000.0, LongContext(32.0, 1.0, 4.0, 8192)),
        tie_word_embeddings=True,
        eos_token_id=128001,
    ),
    "llama-3.1-8b": LlamaConfig(
        *(128256, 131072, 4096, 14336, 32, 32, 8, 128, 1e-5, 500000.0, LongContext(8.0, 1.0, 4.0, 8192)),
        eos_token_id=128001,
    ),
}
