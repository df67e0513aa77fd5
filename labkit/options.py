"""What a rung of the ladder is made of."""

from dataclasses import dataclass, fields

from labkit.errors import OptionError

CHOICES = {
    "block_tables": ("rebuilt",),
    "kv_append": ("per_token",),
    "attention": ("auto", "plain", "triton"),
}


@dataclass(frozen=True)
class EngineOptions:
    """One field a choice; each value names the class that makes it so.

    block_tables: how block tables reach the kernel. "rebuilt": `RebuiltBlockTables`.
    kv_append: how new keys and values reach the cache. "per_token": `AppendPerToken`.
    attention: which paged attention runs. "plain": PyTorch; "triton": the kernel;
        "auto": the kernel on a CUDA GPU, PyTorch elsewhere. The same on every rung.
    Raises OptionError for a value that is not listed.
    """

    block_tables: str = "rebuilt"
    kv_append: str = "per_token"
    attention: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in CHOICES[field.name]:
                allowed = ", ".join(map(repr, CHOICES[field.name]))
                raise OptionError(f"{field.name} = {value!r} is not an option; choose from {allowed}")
