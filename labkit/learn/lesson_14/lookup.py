"""What lesson 14's gate asks of keys and of lookups: each text has its own, and finds its own blocks."""

import random

from labkit.checks import shown
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build
from labkit.learn.lesson_14.played_cache import LONG, OTHER, PlayedCache

NUM_KEYS = 200  # in a chain
NUM_DRAWN = 5000  # blocks: two of them have one key where keys have less than some 23 bits
NOT_ALL = "the last token of a text is never found"
LONGEST = "the longest run of cached blocks is found"


def keys_stand_for_texts(build: Build) -> None:
    """Raise BrokenContract if equal texts have different keys, or different ones too often the same, or if a
    key grows with its text."""
    caches = [PlayedCache(build).cache for _ in range(2)]
    if not all(hasattr(cache, "block_key") for cache in caches):
        return  # a cache without keys
    keys = [cache.block_key for cache in caches]
    block = (1, 2, 3, 4)
    first, second = (key(0, block) for key in keys)
    if getattr(first, "__hash__", None) is None:
        raise BrokenContract(
            f"a key can be a dict's: block_key(0, {block}) is {shown(first)}, expected a number, as "
            "`hash` gives."
        )
    if first != second or first != keys[0](0, tuple(block)):
        raise BrokenContract(
            f"equal texts have equal keys: block_key(0, {block}) is {first}, and then {second}. Make it of "
            "its arguments alone."
        )
    last = first
    for _ in range(NUM_KEYS):
        last = keys[0](last, block)
    if len(repr(last)) > 4 * len(repr(first)) + 100:
        raise BrokenContract(
            f"a key takes as long to make for every block: after {NUM_KEYS} blocks it holds all keys before "
            "it. Let `hash` make one number of the key before and the token ids."
        )
    for noun, hint, *calls in (
        ("token ids", "of the block's token ids", (0, block), (0, (1, 2, 3, 5))),
        ("orders of token ids", "of the token ids in their order", (0, block), (0, (4, 3, 2, 1))),
        ("beginnings", "of the key of the block before, too", (7, block), (8, block)),
    ):
        made = {keys[0](*call) for call in calls}
        if len(made) == 1:
            raise BrokenContract(
                f"a key stands for all of a text up to the block's end: block_key{calls[0]} and "
                f"block_key{calls[1]}, with different {noun}, are both {made.pop()}. Make it {hint}."
            )
    rng = random.Random(0)
    drawn = {(rng.randrange(50), tuple(rng.randrange(5) for _ in range(4))) for _ in range(NUM_DRAWN)}
    num_keys = len({keys[0](*call) for call in drawn})
    if num_keys < 0.999 * len(drawn):
        raise BrokenContract(
            f"different texts have different keys, nearly always: {len(drawn)} blocks have {num_keys} keys. "
            "Let `hash` mix all of it, a tuple of the key before and the token ids, and keep all of its bits."
        )
    forth, back = (keys[0](keys[0](0, a), b) for a, b in ((block, (5, 6, 7, 8)), ((5, 6, 7, 8), block)))
    if forth == back:
        raise BrokenContract(
            "a key stands for all of a text up to the block's end: of two blocks in one order and in "
            f"the other the last key is {forth}. Let `hash` mix a tuple of the key before and the token ids."
        )


def longest_run_is_found(build: Build) -> None:
    """Raise BrokenContract if of cached texts too much or too little is found."""
    played = PlayedCache(build)
    played.keep(LONG)
    played.keep((5, 6, 7, 8, 5, 6, 7, 8, 9))
    for contract, text, expected, hint in (
        (LONGEST, (*LONG[:8], 50), 8, "Both of its full blocks are cached."),
        (LONGEST, (*LONG[:4], *OTHER), 4, "Its first block is cached, and its second is not: stop there."),
        (LONGEST, (50, *LONG), 0, "No block of it is cached: all its tokens lie one place later."),
        (LONGEST, (*OTHER[:4], *LONG[4:8], 9), 0, "Its second block was cached behind another one."),
        (LONGEST, (5, 6, 7, 8, 5, 6, 7, 8, 1), 8, "Two equal blocks are one behind the other."),
        (LONGEST, LONG[:3], 0, "It has no full block."),
        (NOT_ALL, LONG[:8], 4, "Its last token must be computed: nothing else gives the logits after it."),
        (NOT_ALL, LONG[:4], 0, "Its last token must be computed: nothing else gives the logits after it."),
    ):
        found = played.found(text, contract)
        if found != expected:
            raise BrokenContract(
                f"{contract}: of {list(text)} {found} tokens are found, expected {expected}. {hint}"
            )
