"""The architectures that labkit runs, by the name that a checkpoint's config.json has for them."""

from labkit.checks import shown
from labkit.errors import CheckpointError
from labkit.model.gpt2 import GPT2
from labkit.model.llama import Llama, Qwen3
from labkit.model.network import Network

ARCHITECTURES: dict[str, type[Network]] = {"gpt2": GPT2, "llama": Llama, "qwen3": Qwen3}


def architecture_of(model_type: object, given: str = "config.json has model_type") -> type[Network]:
    """The network of that name. Raises CheckpointError, naming those there are, if there is none."""
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    known = ", ".join(map(repr, ARCHITECTURES))
    raise CheckpointError(f"{given} = {shown(model_type)}; labkit runs {known} only")
