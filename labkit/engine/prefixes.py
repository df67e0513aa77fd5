"""What the prefix cache gets from requests that leave; and how it is made."""

from labkit.engine.config import CacheConfig
from labkit.engine.parts import Parts
from labkit.engine.request import FinishReason, Request
from labkit.engine.session import InferenceSession
from labkit.kvcache import KVBlockManager, Prefixes


def build_prefix_cache(parts: Parts, cache: CacheConfig, kv_manager: KVBlockManager) -> Prefixes | None:
    """The cache of prefixes that the options choose; None if there is to be none."""
    part = parts["prefixes"]
    if not cache.prefix_cache:
        return None
    made: Prefixes = (
        part(kv_manager) if parts.options.prefixes == "blocks" else part(kv_manager, cache.max_prefix_entries)
    )
    return made


def keep_text_of(
    prefix_cache: Prefixes | None,
    request: Request,
    session: InferenceSession | None,
    reason: FinishReason | None = None,
) -> None:
    """A running request's text goes into the prefix cache, before its session lets go of the blocks.

    session: None if it does not run. reason: why it ends; None if it will go on.
    Only what is certain: keys and values up to the one from which its newest token was made. A step may be
    in flight that writes that token's own; and if its logits are no numbers, none of its blocks stays.
    """
    if prefix_cache is None or session is None:
        return
    if reason is FinishReason.ERROR:
        prefix_cache.forget(session.block_ids_per_layer)
        return
    num_certain = min(session.num_tokens, request.num_tokens - 1)
    prefix_cache.keep_text(request.token_ids[:num_certain], session.block_ids_per_layer)
