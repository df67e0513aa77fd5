"""What a rung of the ladder is made of."""

from dataclasses import dataclass, fields

from labkit.errors import OptionError

CHOICES = {
    "block_tables": ("rebuilt", "cached"),
    "kv_append": ("per_token", "batched_fast_path", "batched"),
    "kv_write": ("indexed", "full_batch", "identity_pos"),
    "block_info": ("replaced", "mutable"),
    "attention": ("auto", "plain", "triton"),
}


@dataclass(frozen=True)
class EngineOptions:
    """One field a choice; each value names the class that makes it so.

    block_tables: how block tables reach the kernel. "rebuilt": `RebuiltBlockTables`; "cached":
        `CachedBlockTables`.
    kv_append: how new keys and values reach the cache. "per_token": `AppendPerToken`;
        "batched_fast_path": `AppendBatchedFastPath`; "batched": `AppendBatched`.
    kv_write: how a batch of them is written. "indexed": `IndexedWrite`; "full_batch": `FullBatchWrite`;
        "identity_pos": `IdentityPosWrite`.
    block_info: what a block's record is. "replaced": `KVBlockInfo` in a `KVBlockManager`; "mutable":
        `MutableKVBlockInfo` in a `MutableInfoBlockManager`.
    attention: which paged attention runs. "plain": PyTorch; "triton": the kernel;
        "auto": the kernel on a CUDA GPU, PyTorch elsewhere. The same on every rung.
    Raises OptionError for a value that is not listed.
    """

    block_tables: str = "rebuilt"
    kv_append: str = "per_token"
    kv_write: str = "indexed"
    block_info: str = "replaced"
    attention: str = "auto"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in CHOICES[field.name]:
                allowed = ", ".join(map(repr, CHOICES[field.name]))
                raise OptionError(f"{field.name} = {value!r} is not an option; choose from {allowed}")
