"""Lesson 12: the guesses of a search, one after another, and how many it takes."""

from collections.abc import Sequence
from typing import NamedTuple

FLOAT32, FLOAT16 = 32, 16  # bits
GUESSES_EACH = 3  # that the kernel asks for in one pass
BITS_OF_A_DIGIT = 8  # of a radix selection


class Guess(NamedTuple):
    """A number that a search tried, and how many keys are not above it."""

    key: int
    num_up_to: int


def guesses(keys: Sequence[int], limit: int) -> list[Guess]:
    """What a search by halvings tries until it has the smallest key with more than `limit` keys up to it."""
    below, high = min(keys) - 1, max(keys)
    tried = []
    while high - below > 1:
        middle = (below + high) // 2
        tried.append(Guess(middle, sum(key <= middle for key in keys)))
        below, high = (below, middle) if tried[-1].num_up_to > limit else (middle, high)
    return tried


def rounds(width: int, guesses_each: int = 1) -> int:
    """Rounds until a search has one of `width` numbers left, with so many guesses in each, at most."""
    count = 0
    while width > 1:
        width = -(-width // (guesses_each + 1))
        count += 1
    return count


def passes(bits: int, top_k: bool, top_p: bool) -> int:
    """How often the kernel reads a row of numbers of so many bits, at most: for each cut the rounds of a
    search, for top-p the sum of all weights, and once to pick a token (and then a chunk of the row again)."""
    search = rounds(2**bits, GUESSES_EACH)
    return search * top_k + (1 + search) * top_p + 1


def digits(bits: int) -> int:
    """Digits of a number, which a radix selection counts one after another, and a radix sort sorts by."""
    return -(-bits // BITS_OF_A_DIGIT)
