"""Where a model comes from: a directory in Hugging Face's format, the hub, or a seeded random draw.

Weights are read from safetensors files only: nothing is unpickled and no code of a checkpoint runs.
"""

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from labkit.errors import CheckpointError
from labkit.model.config import GPT2Config
from labkit.model.gpt2 import GPT2
from labkit.model.tokenizer import ByteLevelTokenizer, Tokenizer, WordTokenizer

ROOT = Path(__file__).resolve().parents[2]  # the project: notebooks run one folder below it

RANDOM_CONFIGS = {
    "gpt2": GPT2Config(50257, 1024, 768, 12, 12, eos_token_id=50256),
    "gpt2-medium": GPT2Config(50257, 1024, 1024, 24, 16, eos_token_id=50256),
}
HUB_FILES = ["config.json", "*.safetensors", "tokenizer.json", "vocab.json", "merges.txt"]
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # causal masks that old checkpoints stored
CONV1D_WEIGHT = re.compile(r"h\.\d+\.(attn|mlp)\.\w+\.weight")  # stored [in, out]; nn.Linear has [out, in]


@dataclass(frozen=True)
class LanguageModel:
    """A GPT-2 with its tokenizer and the name it was loaded by."""

    name: str
    gpt2: GPT2
    tokenizer: Tokenizer

    @property
    def config(self) -> GPT2Config:
        return self.gpt2.config

    @property
    def dtype(self) -> torch.dtype:
        return self.gpt2.wte.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.gpt2.wte.weight.device

    @property
    def has_random_weights(self) -> bool:
        return self.name.startswith("random:")

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "LanguageModel":
        """This model on `device` in `dtype`; a copy, unless it is there already."""
        if self.device == torch.empty(0, device=device).device and self.dtype == dtype:
            return self
        gpt2 = copy.deepcopy(self.gpt2).to(device, dtype)
        gpt2.tie_weights()
        return LanguageModel(self.name, gpt2, self.tokenizer)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.gpt2.parameters())
        size = f"{count / 1e6:.1f} M {'random ' * self.has_random_weights}parameters"
        return f"LanguageModel({self.name}: {size}, {self.dtype}, {self.device})"


def load_model(source: str | Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> LanguageModel:
    """Load a GPT-2 onto the CPU.

    source: a directory with config.json, *.safetensors and a tokenizer (relative paths are looked up
    from the working directory, then from the project's root); a hub id; or "random:gpt2" or
    "random:gpt2-medium", whose weights are drawn with `seed`.
    Raises CheckpointError naming what is missing or does not fit.
    """
    name = str(source)
    if name.startswith("random:"):
        return random_model(name, dtype, seed)
    for directory in (Path(source).expanduser(), ROOT / source):
        if directory.is_dir():
            return load_directory(directory, name, dtype)
    if isinstance(source, Path) or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        raise CheckpointError(f"there is no directory {name}")
    return load_directory(download(name), name, dtype)


def random_model(name: str, dtype: torch.dtype, seed: int) -> LanguageModel:
    config = RANDOM_CONFIGS.get(name.removeprefix("random:"))
    if config is None:
        known = ", ".join(f"random:{n}" for n in RANDOM_CONFIGS)
        raise CheckpointError(f"no random model {name!r}; there are {known}")
    return LanguageModel(
        name, random_gpt2(config, seed).to(dtype), WordTokenizer(config.vocab_size, config.eos_token_id)
    )


def random_gpt2(config: GPT2Config, seed: int) -> GPT2:
    """A GPT-2 with GPT-2's own initialization (normal, 0.02; biases 0), the same for the same seed."""
    with torch.device("meta"):
        gpt2 = GPT2(config)
    gpt2.to_empty(device="cpu")
    gpt2.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    for module in gpt2.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02, generator=generator)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    return gpt2.eval().requires_grad_(False)


def download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's, the HTTP library's or the operating system's
        raise CheckpointError(
            f"{hub_id!r} is no directory here, and the hub did not give it ({type(error).__name__}). "
            "Check the name and the network, or use data/tiny-gpt2 or random:gpt2."
        ) from error


def load_directory(directory: Path, name: str, dtype: torch.dtype) -> LanguageModel:
    try:
        config = GPT2Config.from_hf(read_json(directory / "config.json"))
        tokenizer = ByteLevelTokenizer.from_directory(directory, config.eos_token_id)
        if tokenizer.vocab_size > config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} entries and the model only {config.vocab_size}"
            )
        with torch.device("meta"):
            gpt2 = GPT2(config)
        gpt2.load_state_dict(fitted_weights(gpt2, read_weights(directory), dtype), assign=True)
        gpt2.tie_weights()
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {name}: {error}") from error
    return LanguageModel(name, gpt2.eval().requires_grad_(False), tokenizer)


def read_json(path: Path) -> dict:
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing from {path.parent}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} holds a {type(value).__name__}, not an object")
    return value


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of the directory's safetensors files, by name, without the head class's prefix."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        found = ", ".join(p.name for p in directory.glob("*.bin")) or "no weights at all"
        raise CheckpointError(
            f"no *.safetensors file in {directory} (found {found}); labkit reads no other format"
        )
    weights = {}
    for file in files:
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file.name} is damaged: {error}") from error
    return {key.removeprefix("transformer."): tensor for key, tensor in weights.items()}


def fitted_weights(gpt2: GPT2, weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict of `gpt2` from a checkpoint's tensors. Raises CheckpointError if one does not fit."""
    expected = {key: tuple(tensor.shape) for key, tensor in gpt2.state_dict().items()}
    weights = {key: tensor for key, tensor in weights.items() if not MASK_BUFFER.fullmatch(key)}
    if gpt2.config.tie_word_embeddings and "wte.weight" in weights:
        head = weights.setdefault("lm_head.weight", weights["wte.weight"])
        if not torch.equal(head, weights["wte.weight"]):
            raise CheckpointError("lm_head.weight is not wte.weight, but config.json has tie_word_embeddings")
    if missing := expected.keys() - weights.keys():
        raise CheckpointError(f"missing tensor{'s' * (len(missing) > 1)}: {', '.join(sorted(missing))}")
    if unknown := weights.keys() - expected.keys():
        raise CheckpointError(f"unknown tensor{'s' * (len(unknown) > 1)}: {', '.join(sorted(unknown))}")
    fitted = {}
    for key, shape in expected.items():
        tensor, is_conv1d = weights[key], CONV1D_WEIGHT.fullmatch(key)
        stored = shape[::-1] if is_conv1d else shape
        if tuple(tensor.shape) != stored:
            raise CheckpointError(
                f"{key} has shape {list(tensor.shape)}, but config.json says it is {list(stored)}"
            )
        fitted[key] = (tensor.T if is_conv1d else tensor).to(dtype).contiguous()
    return fitted
