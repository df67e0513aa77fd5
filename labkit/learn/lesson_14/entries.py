"""What lesson 14's gate asks of entries: the full blocks of a text, each once, and no other text's."""

from collections.abc import Sequence

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build
from labkit.learn.lesson_14.played_cache import BLOCK_SIZE, LONG, OTHER, THIRD, PlayedCache

COMPARED = "a key only says where to look"
FULL_ONCE = "full blocks are kept, each once"


def full_blocks_are_kept(build: Build) -> None:
    """Raise BrokenContract if other blocks are kept than the full ones, or one of them twice."""
    played = PlayedCache(build)
    expected = [list(LONG[:4]), list(LONG[:8])]
    eight = played.held(LONG[:8])
    played.cache.keep_text(LONG[:8], eight.block_ids_per_layer)
    same_texts(played, expected, f"after {list(LONG[:8])} was kept, whose last token fills a block,")
    first = played.held(LONG)
    for when in ("", ", for the second time"):
        played.cache.keep_text(LONG, first.block_ids_per_layer)
        same_texts(played, expected, f"after {list(LONG)} was kept{when}")
    again = played.held(LONG)
    played.cache.keep_text(LONG, again.block_ids_per_layer)
    same_texts(played, expected, "after another request computed the same text")
    longer = (*LONG, *OTHER)
    grown = played.held(longer, begins=first)
    played.cache.keep_text(longer, grown.block_ids_per_layer)
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
        own_texts(played, COMPARED)
        for text in (THIRD, LONG):
            played.found(text, COMPARED)
    last = (5, 5, 5, 5)  # its key alone collides
    played = PlayedCache(build, lambda parent_key, ids: 7 if ids == last else hash((parent_key, ids)))
    played.keep((*LONG[:8], *last))
    played.keep((*OTHER[:4], *LONG[4:8]))
    played.found((*OTHER[:4], *LONG[4:8], *last, 1), COMPARED)


def equal_blocks_are_not_mixed(build: Build) -> None:
    """Raise BrokenContract if a text that has a block twice is kept as one that has it once, where a key is
    made of a block's token ids alone."""
    played = PlayedCache(build, lambda _, token_ids: hash(token_ids))
    twice = (*LONG[:4], *LONG[:4], *OTHER[:4], 1)
    played.keep(twice)
    own_texts(played, COMPARED)
    for text in (twice, (*LONG[:4], *OTHER[:4], 1)):
        played.found(text, COMPARED)


def others_stay(build: Build) -> None:
    """Raise BrokenContract if an entry goes since another text has its key."""
    played = PlayedCache(build, lambda parent_key, _: parent_key + 1)
    played.keep(LONG)
    before = played.texts
    played.keep(THIRD)
    if lost := [text for text in before if text not in played.texts]:
        raise BrokenContract(
            f"{COMPARED}: when {list(THIRD)} was kept, which has the keys of {list(LONG)}, the entry of "
            f"{lost[0]} went. Stop at a key that another text has."
        )


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
            f"{contract}: {error}. An entry holds its block once, by `self.add`, and until `self.drop`."
        ) from error
    own_texts(played, contract)


def own_texts(played: PlayedCache, contract: str) -> None:
    """Raise BrokenContract unless each entry's block was written for its text."""
    for entry in played.cache:
        (block_ids,) = entry.block_ids_per_layer
        if played.written[block_ids[-1]] != tuple(entry.text):
            raise BrokenContract(
                f"{contract}: the entry of {list(entry.text)} has block {block_ids[-1]}, which was written "
                f"for {list(played.written[block_ids[-1]])}. Compare the token ids, and the entry before."
            )
