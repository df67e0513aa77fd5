"""Lesson 14: prefixes that are kept in blocks."""

import random
from collections.abc import Iterable, Sequence
from functools import partial

import torch

from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.cached import first_difference, keys_and_values
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import Invariant
from labkit.learn.lesson_14.counts import converse
from labkit.learn.lesson_14.played_cache import BLOCK_SIZE, LONG, OTHER, THIRD, PlayedCache

# --- what lesson 14's gate asks of keys and of lookups -------------------------------------------------

NUM_KEYS = 200  # in a chain
NUM_DRAWN = 5000  # blocks: two of them have one key where keys have less than some 23 bits
TOKEN_IDS = (1, 2, 3, 11, 12, 22, 258, 65537)  # equal in their digits, joined, or in their last bits
NOT_ALL = "the last token of a text is never found"
LONGEST = "the longest run of cached blocks is found"


def keys_stand_for_texts(build: Build) -> None:
    """Raise BrokenContract if equal texts have different keys, or different ones too often the same, or if a
    key grows with its text."""
    caches = [PlayedCache(build).cache for _ in range(2)]
    if not all(hasattr(cache, "block_key") for cache in caches):
        return  # a cache without keys
    keys = [cache.block_key for cache in caches]
    block, behind = (1, 2, 3, 4), (5, 6, 7, 8)
    first, *others = (key(0, tuple(range(1, 5))) for key in (*keys, *keys))
    if getattr(first, "__hash__", None) is None:
        raise BrokenContract(
            f"a key can be a dict's: block_key(0, {block}) is {shown(first)}, expected a number "
            "such as `hash` gives."
        )
    for other in others:
        if first != other or hash(first) != hash(other):
            raise BrokenContract(
                f"equal texts have equal keys: block_key(0, {block}) is {shown(first)}, and then "
                f"{shown(other)}. Make it of nothing but the numbers in its arguments."
            )
    last, second = first, keys[0](0, behind)
    for _ in range(NUM_KEYS):
        last = keys[0](last, block)
        if len(repr(last)) > 4 * len(repr(first)) + 100:  # at once: Python writes no very long number
            raise BrokenContract(
                f"every key takes equally long to make: after {NUM_KEYS} blocks it holds all keys before "
                "it. Let `hash` make one number of the key before and the token ids."
            )
    for noun, hint, *calls in (
        ("token ids", "of the block's token ids", (0, block), (0, (1, 2, 3, 5))),
        ("orders of token ids", "of the token ids in their order", (0, block), (0, (4, 3, 2, 1))),
        ("beginnings", "of the key of the block before, too", (first, block), (second, block)),
    ):
        made = {keys[0](*call) for call in calls}
        if len(made) == 1:
            raise BrokenContract(
                f"a key stands for all of a text up to the block's end: block_key{calls[0]} and "
                f"block_key{calls[1]}, with different {noun}, are both {made.pop()}. Make it {hint}."
            )
    if (forth := keys[0](first, behind)) == keys[0](second, block):
        raise BrokenContract(
            "a key stands for all of a text up to the block's end: of two blocks in one order and in "
            f"the other the last key is {forth}. Let `hash` mix a tuple of the key before and the token ids."
        )
    rng = random.Random(0)
    befores = [keys[0](0, (number,)) for number in range(50)]
    sizes = rng.choices((4, 5), k=NUM_DRAWN)
    drawn = {(rng.choice(befores), tuple(rng.choices(TOKEN_IDS, k=size))) for size in sizes}
    num_keys = len({keys[0](*call) for call in drawn})
    if num_keys < 0.999 * len(drawn):
        raise BrokenContract(
            f"different texts have different keys, nearly always: {len(drawn)} blocks have {num_keys} keys. "
            "Let `hash` mix all of it, a tuple of the key before and the token ids, and keep all of its bits."
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
        (LONGEST, (*OTHER[:4], *LONG[4:8], 9), 0, "Its second block was cached after another first block."),
        (LONGEST, (5, 6, 7, 8, 5, 6, 7, 8, 1), 8, "It begins with two equal blocks."),
        (LONGEST, LONG[:3], 0, "It has no full block."),
        (NOT_ALL, LONG[:8], 4, "Its last token must be computed: nothing else gives the logits after it."),
        (NOT_ALL, LONG[:4], 0, "Its last token must be computed: nothing else gives the logits after it."),
    ):
        found = played.found(text, contract)
        if found != expected:
            raise BrokenContract(
                f"{contract}: of {list(text)} {found} tokens are found, expected {expected}. {hint}"
            )


# --- what lesson 14's gate asks of entries -------------------------------------------------------------

COMPARED = "a key only says where to look"
FULL_ONCE = "full blocks are kept, each once"


def full_blocks_are_kept(build: Build) -> None:
    """Raise BrokenContract if other blocks are kept than the full ones, or one of them twice."""
    played = PlayedCache(build)
    expected = [list(LONG[:4]), list(LONG[:8])]
    eight = played.kept(LONG[:8])
    same_texts(played, expected, f"after {list(LONG[:8])} was kept, whose last token fills a block,")
    first = played.kept(LONG)
    same_texts(played, expected, f"after {list(LONG)} was kept")
    played.cache.keep_text(LONG, first.block_ids_per_layer)
    same_texts(played, expected, f"after {list(LONG)} was kept, for the second time")
    again = played.kept(LONG)
    same_texts(played, expected, "after another request computed the same text")
    longer = (*LONG, *OTHER)
    grown = played.kept(longer, begins=first)
    expected += [list(longer[:end]) for end in range(12, len(longer) + 1, BLOCK_SIZE)]
    same_texts(played, expected, f"after a text of {len(longer)} tokens that begins so was kept")
    check_entries(played, FULL_ONCE, eight, first, again, grown)


def texts_are_not_mixed(build: Build) -> None:
    """Raise BrokenContract if a text gets another one's blocks when their keys collide."""
    for poor_key in (lambda parent_key, _: 1, lambda parent_key, _: parent_key + 1):
        played = PlayedCache(build, poor_key)
        played.keep(LONG)
        for text in (OTHER, (*LONG[:4], *LONG[:4], 1), LONG):
            played.found(text, COMPARED)
        played.keep(THIRD)
        check_entries(played, COMPARED)
        if lost := lost_entry(played.cache):
            raise BrokenContract(f"{COMPARED}: {lost} Where another text has the key, stop.")
        for text in (THIRD, LONG):
            played.found(text, COMPARED)
    last = (5, 5, 5, 5)  # its key alone collides
    played = PlayedCache(build, lambda parent_key, ids: 7 if ids == last else hash((parent_key, ids)))
    played.keep((*LONG[:8], *last))
    played.keep((*OTHER[:4], *LONG[4:8]))
    for text in ((*OTHER[:4], *LONG[4:8], *last, *THIRD[:4]), (*last, *THIRD[:4])):
        played.found(text, COMPARED)
        played.keep(text)
    check_entries(played, COMPARED)


def same_texts(played: PlayedCache, expected: Sequence[list[int]], when: str) -> None:
    """Raise BrokenContract unless the entries are of these texts."""
    if played.texts != list(expected):
        raise BrokenContract(
            f"{FULL_ONCE}: {when} there are {len(played.texts)} entries, with texts that end at "
            f"{[len(text) for text in played.texts]} tokens, expected at {[len(text) for text in expected]}."
        )


def check_entries(played: PlayedCache, contract: str, *sessions: object) -> None:
    """Raise BrokenContract unless each block is counted as often as it is held, and has its entry's text."""
    try:
        played.manager.check_integrity([*sessions, *played.cache])
    except AssertionError as error:
        raise BrokenContract(
            f"{contract}: {error}. An entry holds its block once, from `self.add` until `self.drop`."
        ) from error
    for entry in played.cache:
        (block_ids,) = entry.block_ids_per_layer
        if played.written[block_ids[-1]] != tuple(entry.text):
            raise BrokenContract(
                f"{contract}: the entry of {list(entry.text)} has block {block_ids[-1]}, which was written "
                f"for {list(played.written[block_ids[-1]])}. Compare the token ids, and the entry before."
            )


# --- what lesson 14's gate asks of eviction ------------------------------------------------------------

ORDER = "the least recently used block goes first"
ENDS_FIRST = "a block goes after those that follow it"
IN_USE = "a block that is in use stays"


def ends_go_first(build: Build) -> None:
    """Raise BrokenContract if more than one block goes at a time, or a block before those that follow it."""
    played = PlayedCache(build)
    text = (*(1, 2, 3, 4) * 3, 5)  # blocks are other blocks although their tokens are the same
    played.keep(text)
    for left in (8, 4, 0):
        num_before = len(played.cache)
        evict(played, expected=True)
        if (found := played.found(text, ENDS_FIRST)) != left:
            raise BrokenContract(
                f"{ENDS_FIRST}: of {num_before} blocks of one text one was evicted, and then {found} of its "
                f"tokens are found, expected {left}. Blocks that follow an evicted one cannot be found, and "
                "are held for nothing."
            )
    evict(played, expected=False)


def evict(played: PlayedCache, expected: bool) -> None:
    """Call `evict_one`. Raises BrokenContract if more than one block goes, or it returns something else than
    expected."""
    num_before, num_free = len(played.cache), played.manager.num_free_blocks
    gave = played.cache.evict_one()
    gone, freed = num_before - len(played.cache), played.manager.num_free_blocks - num_free
    if gone > 1 or (gave and expected and (gone, freed) != (1, 1)):
        raise BrokenContract(
            f"one block goes at a time: evict_one returned {gave}, {gone} of {num_before} entries are gone, "
            f"and {freed} blocks became free, expected 1 and 1."
        )
    if bool(gave) != expected:
        left = "there was none that may go"
        if expected:
            left = "there was one that may go, with `self.num_holders(entry)` 1: the cache itself"
        raise BrokenContract(
            f"evict_one says whether a block went: it returned {gave}, expected {expected}: {left}."
        )


def least_recent_goes_first(build: Build) -> None:
    """Raise BrokenContract if a block goes that was used later than another one that may go."""
    played = PlayedCache(build)
    texts = [tuple(range(1, 10)), tuple(range(10, 15)), tuple(range(20, 25))]  # two blocks, one and one
    for text in texts:
        played.keep(text)
    played.found(texts[0], ORDER)  # counts as used
    for number in (1, 2):
        evict(played, expected=True)
        gone = [i for i, text in enumerate(texts) if list(text[:4]) not in played.texts]
        if number not in gone:
            raise BrokenContract(
                f"{ORDER}: texts 0 (two blocks), 1 and 2 (one each) came in this order, and then text 0 was "
                f"looked up; after {number} evictions texts {gone} are gone, expected text {number} among "
                "them. `self.entries` is in the order of last use."
            )


def what_is_used_stays(build: Build) -> None:
    """Raise BrokenContract if a block goes that a session holds, or that one needs that a session holds."""
    played = PlayedCache(build)
    session = played.kept(LONG)
    played.keep((*OTHER[:4], 1))
    for used in (True, False):
        num_free, reclaimable = played.manager.num_free_blocks, 1 if used else 2
        is_known = played.cache.can_free(reclaimable) and not played.cache.can_free(reclaimable + 1)
        count = 0
        while played.cache.evict_one():
            count += 1
        freed = played.manager.num_free_blocks - num_free
        if count != freed:
            raise BrokenContract(
                f"{IN_USE}: {count} were evicted, and {freed} became free. A request holds the others. "
                "Evicting them frees nothing, and the next request has to compute them again. Their "
                "`self.num_holders(entry)` is more than 1."
            )
        if freed != reclaimable or not is_known:
            raise BrokenContract(
                f"{IN_USE}, and every other goes: {freed} became free, expected {reclaimable}."
            )
        if used:
            session.release()


# --- blocks that are found by what they hold, kept once, and let go from the end -----------------------

SYSTEM = tuple(range(40, 64))  # whole blocks, of 4 tokens or of 3
COMPUTED = "what texts begin with is computed once"


def shared_parts_are_computed_once(build: Build) -> None:
    """Raise BrokenContract if requests compute what those before them have computed."""
    what = [f"question {i} behind a system prompt" for i in range(4)]
    what += ["the first turn of a conversation", "its second turn, after 9 new tokens"]
    for block_size in (BLOCK_SIZE, 3):
        engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(block_size, 40))
        talk = partial(converse, engine, (), params=SamplingParams(9, stop_on_eos=False))
        turns = [turn for i in range(4) for turn in talk([(*SYSTEM, 60 + i, 70, 80)])]
        turns += talk([(1, 2, 3, 4, 5, 6), (7, 8, 9)])
        for which, turn, expected in zip(what, turns, (27, 3, 3, 3, 6, 6), strict=True):
            if turn.computed != expected:
                raise BrokenContract(
                    f"{COMPUTED}: of {which} ({turn.prompt_tokens} tokens, blocks of {block_size}) "
                    f"{turn.computed} tokens are computed, expected {expected}."
                )


def wrong_text(engine: InferenceEngine) -> str:
    """The first entry whose block does not hold the keys and values of its text."""
    manager = engine.kv_manager
    last_layer = manager.num_layers - 1  # its keys depend on all tokens before
    for entry in engine.prefix_cache or ():
        with torch.inference_mode():
            stored = manager.dense_kv(last_layer, entry.block_ids_per_layer[0])
        for have, made in zip(stored, keys_and_values(engine.model.network, tuple(entry.text)), strict=True):
            wanted = made[last_layer, :, entry.start :]
            if have.shape != wanted.shape or first_difference(have, wanted) is not None:
                return (
                    f"block {entry.block_ids_per_layer[0][0]}, cached for {list(entry.text)} from token "
                    f"{entry.start} on, has keys or values of something else."
                )
    return ""


def lost_entry(cache: Iterable) -> str:
    """The first entry that no lookup finds: one before it is not there."""
    texts = {tuple(entry.text) for entry in cache}
    for entry in cache:
        before = tuple(entry.text[: entry.start])
        if before and before not in texts:
            return f"there is an entry of {list(entry.text)}, and none of {list(before)}."
    return ""


GATE = Gate(
    ("prefixes",),
    LADDER["13"].options,
    invariants=(
        Invariant(
            "an entry's block holds its own text",
            wrong_text,
            "Keep only tokens that are written, in their own block.",
        ),
        Invariant(
            "every entry can be found",
            lambda engine: lost_entry(engine.prefix_cache or ()),
            "A block goes after those that follow it.",
        ),
    ),
    trials=(
        keys_stand_for_texts,
        longest_run_is_found,
        full_blocks_are_kept,
        texts_are_not_mixed,
        ends_go_first,
        least_recent_goes_first,
        what_is_used_stays,
        shared_parts_are_computed_once,
    ),
)
