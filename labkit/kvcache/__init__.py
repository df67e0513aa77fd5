"""Memory: the KV block pool and its bookkeeping, block tables, and the prefix cache."""

from labkit.kvcache.block_books import BlockHolder
from labkit.kvcache.block_info import KVBlockInfo, MutableKVBlockInfo
from labkit.kvcache.block_manager import KVBlockManager
from labkit.kvcache.block_prefix_cache import BlockPrefix, BlockPrefixCache, CachedBlock
from labkit.kvcache.block_tables import BlockTables, CachedBlockTables, RebuiltBlockTables
from labkit.kvcache.kv_append import (
    AppendBatched,
    AppendBatchedFastPath,
    AppendPerToken,
    KVAppend,
    LayerAppend,
)
from labkit.kvcache.kv_write import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.kvcache.mutable_block_manager import MutableInfoBlockManager, OneTableBlockManager
from labkit.kvcache.prefix_cache import PrefixCache, PrefixEntry

# What a cache of prefixes is to the engine, whatever it keeps: whole prompts, or their blocks. Iterating over
# one gives its entries, each of which holds its blocks once.
Prefixes = PrefixCache | BlockPrefixCache
Prefix = PrefixEntry | BlockPrefix  # what a text was found to begin with: blocks for its session to share

UNIONS = ["KVAppend", "Prefix", "Prefixes"]  # which do not say where they are from
__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]
__all__ += UNIONS
