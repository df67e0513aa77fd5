"""Lesson 14: the exercise."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Exercise


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
