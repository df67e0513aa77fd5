"""Where a model comes from: a directory in Hugging Face's format, the hub, or a seeded random draw.

Weights are read from safetensors files only: nothing is unpickled and no code of a checkpoint runs.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from labkit.checks import as_name, listed, quoted, shown, whole
from labkit.errors import CheckpointError
from labkit.json_file import read_json, read_object
from labkit.model.chat import CHAT_FILE, read_chat_template
from labkit.model.config import ModelConfig, as_list
from labkit.model.gguf import converted, find_gguf
from labkit.model.language_model import LanguageModel
from labkit.model.network import CheckpointFormat, Network
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.model.registry import ARCHITECTURES, architecture_of
from labkit.model.tokenizer import CONFIG_FILES as TOKENIZER_FILES
from labkit.model.tokenizer import LibraryTokenizer, WordTokenizer
from labkit.paths import ROOT, require_project

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
LONGEST_NAME = 4096  # bytes of a path, on Linux
CONFIG_FILES = ["config.json", "generation_config.json"]
VOCABULARIES = ["tokenizer.json", "vocab.json", "merges.txt"]
HUB_FILES = [*CONFIG_FILES, "*.safetensors", *VOCABULARIES, *TOKENIZER_FILES, CHAT_FILE]
# Of the hub's cache: the folder models--a--b has snapshots, which are folders of links to its blobs.
HUB_MODEL, HUB_SNAPSHOTS, HUB_BLOBS = "models--", "snapshots", "blobs"

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of weights and engines
SEEDS = range(-(2**63), 2**64)  # what a torch.Generator takes


def load_model(
    source: str | os.PathLike[str], dtype: torch.dtype = torch.float32, seed: int = 0
) -> LanguageModel:
    """Load a model of an architecture in `labkit.model.registry` onto the CPU.

    source: a directory with config.json, *.safetensors and a tokenizer (relative paths are looked up
    from the working directory, then from the project's root); a GGUF file, or "smollm2-135m", a small chat
    model in such a file, which is converted once, into the user's cache; a hub id; or "random:" and a name
    of RANDOM_CONFIGS, such as "random:gpt2", whose weights are drawn with `seed`, a whole number of 64 bits;
    "random:small" is a very small one, "random:small-llama" and "random:small-qwen3" are, too.
    dtype: of the weights: torch.float16, bfloat16, float32 or float64.
    The network is asked for a hub id alone. No pickled file is read and no code of a checkpoint runs.
    Raises CheckpointError naming what is missing or does not fit, before any weight is copied, and
    ProjectError for a model of the project in a package that was installed without it.
    """
    name = check_source(source)
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(map(str, DTYPES))}, not {shown(dtype)}")
    seed = check_seed(seed)
    if name.startswith("random:"):
        return random_model(name, dtype, seed)
    if folder := find_folder(name):
        return load_directory(folder, name, dtype)
    if Path(name).parts[:1] == ("data",):  # the project's own
        require_project()
    if isinstance(source, os.PathLike) or not HUB_ID.fullmatch(name):
        raise CheckpointError(f"there is no directory {as_name(name)}")
    return load_directory(download(name), name, dtype)


def check_source(source: object) -> str:
    """The name in `source`, a string or a path. Raises CheckpointError if it cannot be a model's."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"source must be a directory, a hub id or a random model, not {shown(source)}")
    if len(name) > LONGEST_NAME:
        raise CheckpointError(f"source is no directory and no hub id: {shown(name)}")
    return name


def check_seed(seed: object) -> int:
    """The seed as an int. Raises CheckpointError unless it is a whole number that a torch.Generator takes."""
    number = whole(seed)
    if number is None or number not in SEEDS:
        raise CheckpointError(f"seed must be a whole number of at most 64 bits, not {shown(seed)}")
    return number


def find_folder(name: str) -> Path | None:
    """The folder with a model's files, from the working directory or the project's root, or made of a GGUF
    file; None if there is none. Raises CheckpointError for a GGUF file that cannot be converted."""
    try:
        candidates = Path(name).expanduser(), ROOT / name
        if folder := next((path for path in candidates if path.is_dir()), None):
            return folder
    except (OSError, RuntimeError):  # a part of the name is too long; "~someone" has no home here
        return None
    file = find_gguf(name)
    return None if file is None else converted(file)


def random_model(name: str, dtype: torch.dtype, seed: int) -> LanguageModel:
    """A model named in RANDOM_CONFIGS or SMALL_MODELS, with random weights and a tokenizer of words. Raises
    CheckpointError for another name."""
    from labkit.model.small import LONGEST, SMALL_MODELS, small_model  # which is built on this file

    kind = name.removeprefix("random:")
    if kind in SMALL_MODELS:
        return small_model(LONGEST, seed, SMALL_MODELS[kind]).to("cpu", dtype)
    config = RANDOM_CONFIGS.get(kind)
    if config is None:
        known = ", ".join(f"random:{n}" for n in (*RANDOM_CONFIGS, *SMALL_MODELS))
        raise CheckpointError(f"no random model {name!r}; there are {known}")
    tokenizer = WordTokenizer(config.vocab_size, config.eos_token_id)
    return LanguageModel(name, random_network(config, seed).to(dtype), tokenizer)


def random_network(config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> Network:
    """The network of a config with GPT-2's initialization (normal, 0.02; norms 1, biases 0), drawn on the
    device in float32; the same seed gives the same weights on devices of a kind."""
    network = network_without_weights(config, device)
    network.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            nn.init.constant_(parameter, 1 if name.endswith("weight") else 0)
    return network.eval().requires_grad_(False)


class NoInit(TorchFunctionMode):
    """A context in which modules are built without initializing their weights."""

    def __torch_function__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return None  # a module's `reset_parameters` does not ask
        return func(*args, **(kwargs or {}))


def network_without_weights(config: ModelConfig, device: torch.device | str = "meta") -> Network:
    """The network of a config, whose weights are not set; on PyTorch's meta device of shapes alone.

    Drawing numbers that take no memory is left out: PyTorch has that done in Python, for which it first
    imports its compiler, and that takes seconds.
    """
    with torch.device(device), NoInit():
        return ARCHITECTURES[config.model_type](config)


def download(hub_id: str) -> Path:
    """The folder to which a model of the Hugging Face hub was downloaded. Raises CheckpointError if that
    failed."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's, the HTTP library's or the operating system's
        raise CheckpointError(
            f"{hub_id!r} is no directory here, and the hub did not give it ({type(error).__name__}). "
            "Check the name and the network, or use data/tiny-gpt2 or random:gpt2."
        ) from error


def load_directory(directory: Path, name: str, dtype: torch.dtype) -> LanguageModel:
    """A model from a directory in Hugging Face's format. Raises CheckpointError naming what does not fit.

    The network is built of shapes alone, with as many layers as are stored at most, and every tensor's name
    and shape is checked before memory is taken for it.
    """
    try:
        check_files(directory)
        config = read_config(directory)
        tokenizer = LibraryTokenizer.from_directory(directory, config.eos_token_id)
        if tokenizer.num_ids > config.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} entries, ids to {tokenizer.num_ids - 1}, "
                f"and the model only {config.vocab_size}"
            )
        chat_template = read_chat_template(directory)
        stored = read_weights(directory, ARCHITECTURES[config.model_type].checkpoint_format)
        network = network_to_fill(config, stored)
        fill(network, stored, dtype)
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {name}: {error}") from error
    return LanguageModel(name, network.eval().requires_grad_(False), tokenizer, chat_template)


def check_files(directory: Path) -> None:
    """Raises CheckpointError for a file that is read and is no regular one, or a link out of the directory.

    Who shares a checkpoint does not choose which of the reader's other files are opened. In the hub's cache,
    links may lead to the model's own blobs there.
    """
    place = Path(os.path.realpath(directory))
    roots = [place]
    if place.parent.name == HUB_SNAPSHOTS and place.parents[1].name.startswith(HUB_MODEL):
        roots.append(place.parents[1] / HUB_BLOBS)
    for file in (file for pattern in HUB_FILES for file in sorted(directory.glob(pattern))):
        target = Path(os.path.realpath(file))
        if not any(target.is_relative_to(root) for root in roots):
            raise CheckpointError(
                f"{as_name(file.name)} is a link out of the model's folder, and is not followed: "
                "copy the file itself"
            )
        if not file.is_file():
            raise CheckpointError(f"{as_name(file.name)} is no regular file")


def read_config(directory: Path) -> ModelConfig:
    """The sizes in a directory's config.json. Raises CheckpointError if it is damaged or of no architecture
    in `labkit.model.registry`."""
    try:
        raw, more = read_json(directory / CONFIG_FILES[0]), read_object(directory / CONFIG_FILES[1])
    except ValueError as error:
        raise CheckpointError(f"{error} (in {directory})") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"config.json holds a {type(raw).__name__}, not an object")
    read = architecture_of(raw.get("model_type")).config_type.from_hf
    ids = range(read(raw).vocab_size)  # transformers writes an end for any vocabulary
    ends = as_list(raw.get("eos_token_id"))
    ends = ends + [end for end in as_list(more.get("eos_token_id")) if end in ids and end not in ends]
    return read(raw | {"eos_token_id": ends})


def read_weights(directory: Path, names: CheckpointFormat) -> dict[str, Tensor]:
    """All weights of the directory's safetensors files, by name, without the format's prefix; they stay in
    the files' memory. Raises CheckpointError for a damaged file, and for a weight that is stored twice, or
    not in floating point."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        found = ", ".join(p.name for p in directory.glob("*.bin")) or "no weights at all"
        raise CheckpointError(
            f"no *.safetensors file in {directory} (found {found}); labkit reads no other format"
        )
    stored: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors = load_file(file)  # which checks that offsets, sizes and the file fit together
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{as_name(file.name)} is damaged: {quoted(error)}") from error
        for key, tensor in tensors.items():
            name, where = key.removeprefix(names.prefix), f"{as_name(key)} in {as_name(file.name)}"
            if names.not_weights.match(name):
                continue
            if tensor.dtype not in DTYPES:
                allowed = ", ".join(map(str, DTYPES))
                raise CheckpointError(f"{where} has dtype {tensor.dtype}; weights have {allowed}")
            if name in stored:
                raise CheckpointError(f"{where} is stored a second time: keep one of the two")
            stored[name] = tensor
    return stored


def network_to_fill(config: ModelConfig, stored: dict[str, Tensor]) -> Network:
    """The network of a config, of shapes alone. Raises CheckpointError unless its tensors are the stored."""
    names = ARCHITECTURES[config.model_type].checkpoint_format
    if config.num_layers > len(stored):
        raise CheckpointError(f"config.json has {config.num_layers} layers; {len(stored)} tensors are stored")
    try:
        network = network_without_weights(config)
    except (RuntimeError, TypeError) as error:  # a tensor of more bytes than can be counted
        raise CheckpointError(f"config.json has sizes of no network: {quoted(error)}") from error
    tensors = network.stored_tensors().items()
    expected = {name.removeprefix(names.prefix): tensor.shape for name, tensor in tensors}
    if config.tie_word_embeddings and names.head not in stored:
        del expected[names.head]
    if missing := expected.keys() - stored.keys():
        raise CheckpointError(f"missing tensor{'s' * (len(missing) > 1)}: {listed(missing)}")
    if unknown := stored.keys() - expected.keys():
        raise CheckpointError(f"unknown tensor{'s' * (len(unknown) > 1)}: {listed(unknown)}")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise CheckpointError(
                f"{name} has shape {list(stored[name].shape)}, but config.json says it is {list(shape)}"
            )
    is_stored_twice = config.tie_word_embeddings and names.head in stored
    if is_stored_twice and not (stored[names.head] == stored[names.token_table]).all():
        raise CheckpointError(
            f"{names.head} is not {names.token_table}, but config.json has tie_word_embeddings"
        )
    return network


def fill(network: Network, stored: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Give a network of shapes alone the stored tensors' values: where dtype and layout are as stored, they
    stay in the files' memory."""
    names, weights = network.checkpoint_format, {}
    for name in network.state_dict():
        if name == names.head and network.config.tie_word_embeddings:
            continue
        read = [stored[part] for part in network.stored_names(name, 0)]
        whole = read[0] if len(read) == 1 else torch.cat(read)
        turned = whole.T if names.transposed.fullmatch(name) else whole
        weights[name] = turned.to(dtype).contiguous()
    network.load_state_dict(weights, strict=False, assign=True)
    network.tie_weights()
