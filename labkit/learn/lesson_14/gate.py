"""Lesson 14: prefixes that are kept in blocks."""

from collections.abc import Callable, Container, Iterable, Sequence

import torch

from labkit.engine import CacheConfig, InferenceSession
from labkit.kvcache import CachedBlock
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
    """The cache of an engine in which nothing runs, with this `block_key` if one is given. Its texts are
    written by hand, all values zero."""

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
    for text in (LONG, LONG, longer):
        sessions.append(played.kept(text, begins=sessions[0] if text == longer else None))
        expected = [list(text[:end]) for end in range(BLOCK_SIZE, len(text) + 1, BLOCK_SIZE)]
        if played.texts != expected:
            raise BrokenContract(
                f"full blocks are kept, each once: when {list(text)} was kept, as text {len(sessions)} that "
                f"begins so, the entries' texts end at {[len(text) for text in played.texts]} tokens, "
                f"expected at {[len(text) for text in expected]}."
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


def the_right_block_goes(build: Build) -> None:
    """Raise BrokenContract unless `evict_one` drops the least recently used block that may go."""
    played = PlayedCache(build)
    same = (*(1, 2, 3, 4) * 3, 5)  # blocks are other blocks although their tokens are the same
    played.kept(THIRD[:9])  # by a request that goes on
    for text in (same, OTHER, LONG[4:]):
        played.keep(text)
    played.found(same, COMPARED)  # counts as used
    is_empty = False
    while not is_empty:
        before = list(played.cache)
        parents = {entry.parent for entry in before}
        in_use = [entry for entry in before if played.manager.refcount(entry.block_id) > 1]
        may_go = [entry for entry in before if entry not in parents and entry not in in_use]
        gave = played.cache.evict_one()
        gone = [entry for entry in before if entry not in list(played.cache)]
        about = f"of {len(before)} entries, of which {len(may_go)} may go"
        if len(gone) > 1:
            raise BrokenContract(f"one block goes at a time: {about}, {len(gone)} are gone.")
        if may_go and not gone:
            raise BrokenContract(
                f"a block that is in use stays, and every other goes: {about}, none is gone. An entry may go "
                "if it is no other's parent, and `self.num_holders(entry)` is 1."
            )
        if bool(gave) != bool(gone):
            raise BrokenContract(
                f"evict_one says whether a block went: it returned {gave}, and {about}, {len(gone)} is gone."
            )
        for entry in gone:
            check_gone(entry, parents, in_use, may_go)
        is_empty = not may_go


def check_gone(
    entry: CachedBlock, parents: Container, in_use: Container, may_go: Sequence[CachedBlock]
) -> None:
    """Raise BrokenContract unless this entry was the first of those that may go."""
    text = list(entry.text)
    if entry in in_use:
        raise BrokenContract(
            f"a block that is in use stays: the entry of {text} is gone, whose block a request holds. That "
            "frees nothing, and the next request has to compute it again. Its `self.num_holders(entry)` is "
            "more than 1."
        )
    if entry in parents:
        raise BrokenContract(
            f"a block goes after those that follow it: the entry of {text} is gone, and one that follows it "
            "is there. It cannot be found, and is held for nothing."
        )
    if entry is not may_go[0]:
        raise BrokenContract(
            f"the least recently used block goes first: the entry of {text} is gone, expected that of "
            f"{list(may_go[0].text)}. `self.entries` is in the order of last use."
        )


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
        the_right_block_goes,
    ),
)
