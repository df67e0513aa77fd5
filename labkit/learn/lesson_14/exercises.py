"""Lesson 14: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Exercise

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


WHICH_GOES = Exercise(
    solution=which_goes,
    draw=draw_blocks,
    contract="Of the blocks that are no block's parent and that no request holds, the one used longest ago"
    " goes. None if there is none.",
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


TOKENS_COMPUTED = Exercise(
    solution=tokens_computed,
    draw=draw_some_texts,
    contract="What is found is the longest run of full blocks from the beginning of the text that an "
    "earlier text began with too, but never the text's last token. The rest is computed.",
)
