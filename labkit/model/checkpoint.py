"""Where a model comes from: a directory in Hugging Face's format, the hub, or a seeded random draw.

Weights are read from safetensors files only: nothing is unpickled and no code of a checkpoint runs.
"""

import copy
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.checks import shown, whole
from labkit.errors import CheckpointError
from labkit.json_file import check_regular, parse_json, read_json
from labkit.model.config import GPT2Config
from labkit.model.gpt2 import GPT2
from labkit.model.tokenizer import ByteLevelTokenizer, Tokenizer, WordTokenizer
from labkit.paths import ROOT

RANDOM_CONFIGS = {
    "gpt2": GPT2Config(50257, 1024, 768, 12, 12, eos_token_id=50256),
    "gpt2-medium": GPT2Config(50257, 1024, 1024, 24, 16, eos_token_id=50256),
}
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
LONGEST_NAME = 4096  # bytes of a path, on Linux
HUB_FILES = ["config.json", "*.safetensors", "tokenizer.json", "vocab.json", "merges.txt"]
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)$")  # causal masks that old checkpoints stored
LAYER = re.compile(r"h\.(\d+)\.")
CONV1D_WEIGHT = re.compile(r"h\.\d+\.(attn|mlp)\.\w+\.weight")  # stored [in, out]; nn.Linear has [out, in]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights and engines
STORED_DTYPES = ("F16", "BF16", "F32", "F64")  # safetensors' names for them
SEEDS = range(-(2**63), 2**64)  # what a torch.Generator takes


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


def load_model(
    source: str | os.PathLike[str], dtype: torch.dtype = torch.float32, seed: int = 0
) -> LanguageModel:
    """Load a GPT-2 onto the CPU.

    source: a directory with config.json, *.safetensors and a tokenizer (relative paths are looked up
    from the working directory, then from the project's root); a hub id; or "random:gpt2" or
    "random:gpt2-medium", whose weights are drawn with `seed`, a whole number of 64 bits.
    dtype: of the weights: torch.float16, bfloat16, float32 or float64.
    Raises CheckpointError naming what is missing or does not fit, before any weight is read.
    """
    name = check_source(source)
    check_dtype(dtype)
    seed = check_seed(seed)
    if name.startswith("random:"):
        return random_model(name, dtype, seed)
    if directory := find_directory(name):
        return load_directory(directory, name, dtype)
    if isinstance(source, os.PathLike) or not HUB_ID.fullmatch(name):
        raise CheckpointError(f"there is no directory {name}")
    return load_directory(download(name), name, dtype)


def check_source(source: object) -> str:
    """The name of a model. Raises CheckpointError if it can be none, as `check_dtype` and `check_seed` do."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"source must be a directory, a hub id or a random model, not {shown(source)}")
    if len(name) > LONGEST_NAME:
        raise CheckpointError(f"source is no directory and no hub id: {shown(name)}")
    return name


def check_dtype(dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(map(str, DTYPES))}, not {shown(dtype)}")


def check_seed(seed: object) -> int:
    number = whole(seed)
    if number is None or number not in SEEDS:
        raise CheckpointError(f"seed must be a whole number of at most 64 bits, not {shown(seed)}")
    return number


def find_directory(name: str) -> Path | None:
    """The directory of that name, from here or from the project's root."""
    try:
        candidates = Path(name).expanduser(), ROOT / name
        return next((path for path in candidates if path.is_dir()), None)
    except (OSError, RuntimeError):  # a part of the name is too long; "~someone" is nobody here
        return None


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
    gpt2 = gpt2_without_weights(config)
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


class NoInit(TorchFunctionMode):
    """Leaves out the initialization of what is built inside."""

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        if getattr(func, "__module__", None) == "torch.nn.init":
            return None  # a module's `reset_parameters` does not ask
        return func(*args, **(kwargs or {}))


def gpt2_without_weights(config: GPT2Config) -> GPT2:
    """A GPT-2 of shapes alone. Drawing numbers that take no memory is left out: PyTorch has that done in
    Python, for which it first imports its compiler, and that takes seconds."""
    with torch.device("meta"), NoInit():
        return GPT2(config)


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
    """Every file is checked before a module is built, and a module is only built of sizes that are stored."""
    try:
        config = read_config(directory)
        tokenizer = ByteLevelTokenizer.from_directory(directory, config.eos_token_id)
        if tokenizer.num_ids > config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} entries, ids to {tokenizer.num_ids - 1}, "
                f"and the model only {config.vocab_size}"
            )
        stored = read_headers(directory)
        check_sizes(config, stored)
        gpt2 = gpt2_without_weights(config)
        gpt2.load_state_dict(fitted_weights(gpt2, stored, dtype), assign=True)
        gpt2.tie_weights()
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {name}: {error}") from error
    return LanguageModel(name, gpt2.eval().requires_grad_(False), tokenizer)


def read_config(directory: Path) -> GPT2Config:
    try:
        raw = read_json(directory / "config.json")
    except ValueError as error:
        raise CheckpointError(f"{error} (in {directory})") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"config.json holds a {type(raw).__name__}, not an object")
    return GPT2Config.from_hf(raw)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a safetensors file, of which the header alone was read."""

    file: Path
    key: str
    shape: tuple[int, ...]
    opened: safe_open  # one for all tensors of the file: they share its memory

    def read(self) -> Tensor:
        return self.opened.get_tensor(self.key)

    def equals(self, other: "StoredTensor") -> bool:
        """Whether they hold the same numbers, in whatever dtypes."""
        return self.shape == other.shape and bool((self.read() == other.read()).all())


def read_headers(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of the directory's safetensors files, by name, without the head class's prefix and without
    causal masks. Raises CheckpointError for one that is stored twice and differs, or not in floating point.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        found = ", ".join(p.name for p in directory.glob("*.bin")) or "no weights at all"
        raise CheckpointError(
            f"no *.safetensors file in {directory} (found {found}); labkit reads no other format"
        )
    stored: dict[str, StoredTensor] = {}
    for tensor in (tensor for file in files for tensor in read_header(file)):
        name = tensor.key.removeprefix("transformer.")
        if MASK_BUFFER.match(name):
            continue
        first = stored.setdefault(name, tensor)
        if first is not tensor and not first.equals(tensor):
            places = " and ".join(f"as {t.key} in {t.file.name}" for t in (first, tensor))
            raise CheckpointError(f"{name} is stored twice, with other numbers: {places}")
    return stored


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file. Raises CheckpointError naming the file and what is wrong."""
    try:
        check_regular(file)
        opened = safe_open(file, "pt")  # which checks that offsets, sizes and the file fit together
        keys = opened.keys()
        slices = {key: opened.get_slice(key) for key in keys}
        with file.open("rb") as raw:  # eight bytes of length and a JSON object, whose keys nobody checked
            parse_json("its header", raw.read(int.from_bytes(raw.read(8), "little")))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file.name} is damaged: {error}") from error
    for key, part in slices.items():
        if part.get_dtype() not in STORED_DTYPES and not MASK_BUFFER.search(key):
            allowed = ", ".join(STORED_DTYPES)
            raise CheckpointError(
                f"{key} has dtype {part.get_dtype()} in {file.name}; weights have {allowed}"
            )
    return [StoredTensor(file, key, tuple(part.get_shape()), opened) for key, part in slices.items()]


def check_sizes(config: GPT2Config, stored: dict[str, StoredTensor]) -> None:
    """Whether each size of config.json is that of a tensor which is there: what is built is then no larger
    than the files. Raises CheckpointError."""
    for key, shape in {
        "wte.weight": (config.vocab_size, config.n_embd),
        "wpe.weight": (config.n_positions, config.n_embd),
        "h.0.mlp.c_fc.weight": (config.n_embd, config.inner_dim),
    }.items():
        if key not in stored:
            raise CheckpointError(f"missing tensor: {key}")
        check_shape(key, stored[key], shape)
    num_layers = len({match[1] for match in map(LAYER.match, stored) if match})
    if config.n_layer > num_layers:
        raise CheckpointError(
            f"config.json has n_layer = {config.n_layer}, but {num_layers} layers are stored"
        )


def check_shape(key: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"{key} has shape {list(tensor.shape)}, but config.json says it is {list(shape)}"
        )


def fitted_weights(gpt2: GPT2, stored: dict[str, StoredTensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict of `gpt2` from a checkpoint's tensors. Raises CheckpointError if one does not fit."""
    expected = {key: tuple(tensor.shape) for key, tensor in gpt2.state_dict().items()}
    stored = dict(stored)
    if gpt2.config.tie_word_embeddings:
        table = stored["wte.weight"]
        head = stored.setdefault("lm_head.weight", table)
        if head is not table and not head.equals(table):
            raise CheckpointError("lm_head.weight is not wte.weight, but config.json has tie_word_embeddings")
    if missing := expected.keys() - stored.keys():
        raise CheckpointError(f"missing tensor{'s' * (len(missing) > 1)}: {', '.join(sorted(missing))}")
    if unknown := stored.keys() - expected.keys():
        raise CheckpointError(f"unknown tensor{'s' * (len(unknown) > 1)}: {', '.join(sorted(unknown))}")
    conv1d = {key for key in expected if CONV1D_WEIGHT.fullmatch(key)}
    for key, shape in expected.items():
        check_shape(key, stored[key], shape[::-1] if key in conv1d else shape)
    tensors = {key: stored[key].read() for key in expected}
    return {key: (t.T if key in conv1d else t).to(dtype).contiguous() for key, t in tensors.items()}
