"""Lesson 14: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Case, Exercise

Block = tuple[str, str | None, int]  # its name, its parent's, and when it was used last

# --- which block goes ------------------------------------------------------------------------------------


def which_goes(blocks: Sequence[Block], in_use: Sequence[str]) -> str | None:
    """The least recently used block that no request holds and that is no other's parent; None if all are."""
    parents = {parent for _, parent, _ in blocks}
    may_go = [(used, name) for name, _, used in blocks if name not in parents and name not in in_use]
    return min(may_go)[1] if may_go else None


def draw_blocks(rng: Random) -> dict[str, object]:
    """Draw arguments of `which_goes`: chains that part, in any order."""
    names = list("abcdefgh")[: rng.randint(1, 8)]
    times = rng.sample(range(1, 30), len(names))
    blocks: list[Block] = []
    for place, (name, used) in enumerate(zip(names, times, strict=True)):
        parent = rng.choice([None, *names[:place]])
        blocks.append((name, parent, used))
    rng.shuffle(blocks)
    in_use = [name for name in names if rng.random() < 0.3]
    return {"blocks": blocks, "in_use": in_use}


def held(blocks: Sequence[Block], in_use: str = "") -> dict[str, object]:
    """Arguments of `which_goes`."""
    return {"blocks": list(blocks), "in_use": list(in_use)}


WHICH_GOES = Exercise(
    "which_goes",
    (
        Case(held([("a", None, 2), ("b", None, 1), ("c", None, 3)]), "b", "It was used longest ago."),
        Case(
            held([("a", None, 1), ("b", "a", 2), ("c", "b", 3)]),
            "c",
            "a and b have a block behind them, which nobody would find without them.",
        ),
        Case(held([("a", None, 1), ("b", None, 2)], "a"), "b", "A request holds a: that would free nothing."),
        Case(
            held([("a", None, 3), ("b", "a", 1), ("c", "a", 2)]),
            "b",
            "b and c both follow a, and b was used before c.",
        ),
        Case(
            held([("a", None, 1), ("b", "a", 2), ("c", None, 3)], "b"),
            "c",
            "a is the parent of b, which a request holds.",
        ),
        Case(held([("a", None, 1), ("b", "a", 2)], "ab"), None, "None may go, so the answer is None."),
        Case(held([]), None, "There is none."),
        Case(
            held([("b", "a", 5), ("c", None, 4), ("a", None, 1)]),
            "c",
            "The order of the list says nothing, and a was used first but is b's parent.",
        ),
    ),
    which_goes,
    draw_blocks,
    "Of the blocks that are no parent and that no request holds, the one with the smallest last_used.",
)

# --- what is computed ------------------------------------------------------------------------------------


def tokens_computed(texts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """How many tokens of each text are computed, if all full blocks of those before it are cached."""
    cached: set[tuple[int, ...]] = set()
    computed = []
    for text in texts:
        found = 0
        while found + block_size < len(text) and tuple(text[: found + block_size]) in cached:
            found += block_size
        computed.append(len(text) - found)
        cached |= {tuple(text[:end]) for end in range(block_size, len(text) + 1, block_size)}
    return computed


def draw_some_texts(rng: Random) -> dict[str, object]:
    """Draw arguments of `tokens_computed`: few different tokens, and texts that begin as others do."""
    texts: list[list[int]] = []
    for _ in range(rng.randint(1, 5)):
        begins = rng.choice(texts)[: rng.randint(0, 12)] if texts and rng.random() < 0.8 else []
        texts.append(begins + [rng.randint(1, 2) for _ in range(rng.randint(1, 6))])
    return {"texts": texts, "block_size": rng.randint(1, 4)}


def of_texts(*texts: Sequence[int], block_size: int = 2) -> dict[str, object]:
    """Arguments of `tokens_computed`."""
    return {"texts": [list(text) for text in texts], "block_size": block_size}


TOKENS_COMPUTED = Exercise(
    "tokens_computed",
    (
        Case(of_texts([1, 2, 3]), [3], "Nothing is cached yet."),
        Case(of_texts([1, 2, 3], [4, 5, 6]), [3, 3], "They have nothing in common."),
        Case(of_texts([1, 2, 3, 4, 5], [1, 2, 3, 4, 6]), [5, 1], "Two full blocks are shared."),
        Case(of_texts([1, 2, 3, 4], [1, 2, 3, 9, 9]), [4, 3], "They part inside the second block."),
        Case(
            of_texts([1, 2, 3, 4], [1, 2, 3, 4]),
            [4, 2],
            "The last token is always computed, so the block that has it is not found.",
        ),
        Case(of_texts([1, 2, 3], [1, 2, 3, 4, 5]), [3, 3], "Of 1, 2, 3 only the block 1, 2 is full."),
        Case(of_texts([9, 9, 3, 4], [1, 2, 3, 4, 5]), [4, 5], "3, 4 was cached behind another block."),
        Case(
            of_texts([1, 2, 3, 4, 5], [6, 7, 8], [1, 2, 3, 4, 9]),
            [5, 3, 1],
            "Texts before the last one count, too.",
        ),
        Case(of_texts([1, 2], [1, 2], block_size=4), [2, 2], "Shorter than a block."),
        Case(of_texts([1, 1, 1, 1, 1], [1, 1, 1], block_size=1), [5, 1], "Blocks of one token."),
    ),
    tokens_computed,
    draw_some_texts,
    "Found is the longest run of blocks from the text's beginning whose tokens up to their end begin a text "
    "that came before, but never its last token. The rest is computed.",
)
