"""Memory: the block pool and its books, block tables, and the prefix cache."""

from labkit.kvcache.block_info import KVBlockInfo
from labkit.kvcache.block_manager import BlockHolder, KVBlockManager
from labkit.kvcache.block_tables import RebuiltBlockTables
from labkit.kvcache.kv_append import AppendPerToken
from labkit.kvcache.prefix_cache import PrefixCache, PrefixEntry

__all__ = [
    "AppendPerToken",
    "BlockHolder",
    "KVBlockInfo",
    "KVBlockManager",
    "PrefixCache",
    "PrefixEntry",
    "RebuiltBlockTables",
]
