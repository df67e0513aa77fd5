"""What lesson 14's gate asks of eviction: one block at a time, ends first, the oldest first, none in use."""

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build
from labkit.learn.lesson_14.played_cache import LONG, NUM_BLOCKS, OTHER, PlayedCache

ORDER = "the least recently used block goes first"
ENDS_FIRST = "a block goes after those that follow it"
IN_USE = "a block that is in use stays"


def ends_go_first(build: Build) -> None:
    """Raise BrokenContract if more than one block goes at a time, or a block before those that follow it."""
    played = PlayedCache(build)
    text = tuple(range(1, 14))
    played.keep(text)
    for left in (8, 4, 0):
        num_before = len(played.cache)
        evict(played, expected=True)
        if (found := played.found(text, ENDS_FIRST)) != left:
            raise BrokenContract(
                f"{ENDS_FIRST}: of {num_before} blocks of one text one went, and then {found} of its tokens "
                f"are found, expected {left}. What follows a block that is gone cannot be found, and is held "
                "for nothing."
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
            f"one block goes at a time: evict_one returned {gave}, {gone} of {num_before} entries went, and "
            f"{freed} blocks became free, expected 1 and 1."
        )
    if bool(gave) != expected:
        left = "none was there that may go"
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
    session = played.held(LONG)
    played.cache.keep_text(LONG, session.block_ids_per_layer)
    played.keep((*OTHER[:4], 1))
    for used in (True, False):
        num_free, reclaimable = played.manager.num_free_blocks, 1 if used else 2
        is_known = played.cache.can_free(reclaimable) and not played.cache.can_free(reclaimable + 1)
        count = 0
        while played.cache.evict_one():
            count += 1
            if count > NUM_BLOCKS:
                raise BrokenContract("evict_one says whether a block went: it is True for ever.")
        freed = played.manager.num_free_blocks - num_free
        if count != freed:
            raise BrokenContract(
                f"{IN_USE}: {count} were evicted, and {freed} became free. A request holds the others: to "
                "evict them frees nothing, and who asks next computes them again. `self.num_holders(entry)` "
                "is more than 1."
            )
        if freed != reclaimable or not is_known:
            raise BrokenContract(
                f"{IN_USE}, and every other goes: {freed} became free, expected {reclaimable}."
            )
        if used:
            session.release()
