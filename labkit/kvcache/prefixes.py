"""What a cache of prefixes is to the engine, whatever it keeps: whole prompts, or their blocks.

Both have the same methods. Iterating over one gives its entries, each of which holds its blocks once. What a
text was found to begin with are blocks for its session to share.
"""

from labkit.kvcache.block_prefix_cache import BlockPrefix, BlockPrefixCache
from labkit.kvcache.prefix_cache import PrefixCache, PrefixEntry

Prefixes = PrefixCache | BlockPrefixCache
Prefix = PrefixEntry | BlockPrefix
