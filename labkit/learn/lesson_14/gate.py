"""Lesson 14: prefixes that are kept in blocks."""

from collections.abc import Callable, Iterable, Sequence

import torch

from labkit.engine import CacheConfig, InferenceSession
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import Invariant

# --- a cache of blocks in a small pool, with texts that are written there for it -----------------------

BLOCK_SIZE, NUM_BLOCKS = 4, 16
LONG = tuple(range(1, 11))  # two full blocks, and two tokens
OTHER = tuple(range(20, 31))
THIRD = tuple(range(60, 74))


class PlayedCache:
    """The cache of an engine in which nothing runs. Its texts are written by hand, all values zero.

    block_key: in place of the cache's own.
    """

    def __init__(self, build: Build, block_key: Callable | None = None) -> None:
        engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(BLOCK_SIZE, NUM_BLOCKS))
        self.cache, self.manager = engine.prefix_cache, engine.kv_manager
        self.written: dict[int, tuple[int, ...]] = {}  # by block: the text up to its end
        if block_key:
            self.cache.block_key = block_key

    def kept(self, token_ids: Sequence[int], begins: InferenceSession | None = None) -> InferenceSession:
        """A session that holds a text in blocks of its own, after those of a session that it begins with. The
        cache has kept it."""
        session = begins.fork() if begins else InferenceSession(self.manager)
        num_layers, _, num_heads, _, head_dim = self.manager.k_cache.shape
        new = torch.zeros(num_layers, num_heads, len(token_ids) - session.num_tokens, head_dim)
        session.append_prompt(new.to(self.manager.k_cache), new.to(self.manager.v_cache))
        for place, block_id in enumerate(session.block_ids_per_layer[0]):
            self.written[block_id] = tuple(token_ids[: (place + 1) * BLOCK_SIZE])
        self.cache.keep_text(token_ids, session.block_ids_per_layer)
        return session

    def keep(self, token_ids: Sequence[int]) -> None:
        """A request with this text comes and goes."""
        self.kept(token_ids).release()

    def found(self, token_ids: Sequence[int], contract: str) -> int:
        """How many tokens of a text the cache finds. Raises BrokenContract if some of their blocks were
        written for another text."""
        prefix = self.cache.lookup(token_ids)
        for place, block_id in enumerate(prefix.block_ids_per_layer[0] if prefix else ()):
            expected = tuple(token_ids[: (place + 1) * BLOCK_SIZE])
            if self.written.get(block_id) != expected:
                raise BrokenContract(
                    f"{contract}: block {place} of {list(token_ids)} is found in block {block_id} of the "
                    f"pool, which was written for {list(self.written.get(block_id, ()))}, expected one for "
                    f"{list(expected)}. Compare the token ids, and the entry before."
                )
        return prefix.num_tokens if prefix else 0

    @property
    def texts(self) -> list[list[int]]:
        """The text of each entry, up to its block's end, the shortest first."""
        return sorted((list(entry.text) for entry in self.cache), key=lambda text: (len(text), text))

    def check_entries(self, contract: str, *sessions: InferenceSession) -> None:
        """Raise BrokenContract unless each block is counted as often as it is held, and each entry can be
        found."""
        try:
            self.manager.check_integrity([*sessions, *self.cache])
        except AssertionError as error:
            raise BrokenContract(
                f"{contract}: {error}. An entry holds its block once, from `self.add` until `self.drop`."
            ) from error
        if lost := lost_entry(self.cache):
            raise BrokenContract(f"{contract}: {lost} Where another text has the key, stop.")


def lost_entry(cache: Iterable) -> str:
    """The first entry that no lookup finds: one before it is not there."""
    texts = {tuple(entry.text) for entry in cache}
    for entry in cache:
        before = tuple(entry.text[: entry.start])
        if before and before not in texts:
            return f"there is an entry of {list(entry.text)}, and none of {list(before)}."
    return ""


# --- steps 1 and 2: keys and lookups ---------------------------------------------------------------------

NUM_KEYS = 200  # in a chain
COMPARED = "a key only says where to look"


def keys_stand_for_texts(build: Build) -> None:
    """Raise BrokenContract if different texts have the same key, or if a key grows with its text."""
    block_key = PlayedCache(build).cache.block_key
    block = (1, 2, 3, 4)
    first, second = block_key(0, block), block_key(0, (5, 6, 7, 8))
    last = first
    for _ in range(NUM_KEYS):
        last = block_key(last, block)
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
        made = {block_key(*call) for call in calls}
        if len(made) == 1:
            raise BrokenContract(
                f"a key stands for all of a text up to the block's end: block_key{calls[0]} and "
                f"block_key{calls[1]}, with different {noun}, are both {made.pop()}. Make it {hint}."
            )


def longest_run_is_found(build: Build) -> None:
    """Raise BrokenContract if of cached texts too much or too little is found."""
    played = PlayedCache(build)
    played.keep(LONG)
    longest, not_all = "the longest run of cached blocks is found", "the last token of a text is never found"
    for contract, text, expected, hint in (
        (longest, (*LONG[:8], 50), 8, "Both of its full blocks are cached."),
        (longest, (*LONG[:4], *OTHER), 4, "Its first block is cached, and its second is not: stop there."),
        (longest, (*OTHER[:4], *LONG[4:8], 9), 0, "Its second block was cached after another first block."),
        (not_all, LONG[:8], 4, "Its last token must be computed: nothing else gives the logits after it."),
    ):
        found = played.found(text, contract)
        if found != expected:
            raise BrokenContract(
                f"{contract}: of {list(text)} {found} tokens are found, expected {expected}. {hint}"
            )


# --- step 3: entries -------------------------------------------------------------------------------------


def full_blocks_are_kept(build: Build) -> None:
    """Raise BrokenContract if other blocks are kept than the full ones, or one of them twice."""
    played = PlayedCache(build)
    longer = (*LONG, *OTHER)
    sessions: list[InferenceSession] = []
    for text, when in (
        (LONG, f"after {list(LONG)} was kept"),
        (LONG, "after another request computed the same text"),
        (longer, f"after a text of {len(longer)} tokens that begins so was kept"),
    ):
        sessions.append(played.kept(text, begins=sessions[0] if text == longer else None))
        expected = [list(text[:end]) for end in range(BLOCK_SIZE, len(text) + 1, BLOCK_SIZE)]
        if played.texts != expected:
            raise BrokenContract(
                f"full blocks are kept, each once: {when} there are {len(played.texts)} entries, with texts "
                f"that end at {[len(text) for text in played.texts]} tokens, expected at "
                f"{[len(text) for text in expected]}."
            )
    played.check_entries("full blocks are kept, each once", *sessions)


def texts_are_not_mixed(build: Build) -> None:
    """Raise BrokenContract if a text gets another one's blocks when their keys collide."""
    # Keys by the block's place, and by its own tokens alone.
    for poor_key in (lambda parent_key, _: parent_key + 1, lambda _, token_ids: hash(token_ids)):
        played = PlayedCache(build, poor_key)
        played.keep(LONG)
        mixed, both = (*OTHER[:4], *LONG[4:8], *THIRD[:5]), (*LONG[:8], *THIRD[:5])
        for text in (OTHER, mixed, both, (*LONG[4:8], 9), THIRD, LONG):
            played.found(text, COMPARED)
            played.keep(text)
            played.check_entries(COMPARED)


# --- step 4: eviction ------------------------------------------------------------------------------------

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
        raise BrokenContract(
            f"evict_one says whether a block went: it returned {gave}, expected {expected}: there was "
            f"{'one' if expected else 'none'} that may go."
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
    """Raise BrokenContract if a block goes that a session holds, or another one stays."""
    played = PlayedCache(build)
    played.kept(LONG)
    played.keep((*OTHER[:4], 1))
    num_free, count = played.manager.num_free_blocks, 0
    while played.cache.evict_one():
        count += 1
    freed = played.manager.num_free_blocks - num_free
    if count != freed:
        raise BrokenContract(
            f"{IN_USE}: {count} were evicted, and {freed} became free. A request holds the others. "
            "Evicting them frees nothing, and the next request has to compute them again. Their "
            "`self.num_holders(entry)` is more than 1."
        )
    if freed != 1:
        raise BrokenContract(f"{IN_USE}, and every other goes: {freed} became free, expected 1.")


GATE = Gate(
    ("prefixes",),
    LADDER["13"].options,
    invariants=(
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
    ),
)
