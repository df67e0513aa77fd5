"""Lesson 09: how many programs a kernel has, which tokens each reads, and in which order sums are added."""

from collections.abc import Sequence

import numpy as np

from labkit.kernels import num_splits
from labkit.kernels.split_attention import TOKENS_AT_A_TIME
from labkit.model.random_configs import RANDOM_CONFIGS


def pieces_of(
    context_len: int, splits: int, by_turns: bool, max_tokens: int = 1024
) -> list[tuple[int, int, int]]:
    """The pieces in which one request's tokens are read: (first token, number of tokens, program) each.

    by_turns: a program takes every splits-th piece, as the kernel does; else it has a contiguous share of the
    longest context that there can be.
    """
    pieces = []
    for first in range(0, context_len, TOKENS_AT_A_TIME):
        program = first // TOKENS_AT_A_TIME % splits if by_turns else first // -(-max_tokens // splits)
        pieces.append((first, min(TOKENS_AT_A_TIME, context_len - first), program))
    return pieces


def split_of_a_run(batch_size: int, context_lens: Sequence[int], num_heads: int = 12) -> dict[str, float]:
    """What splitting does in a run with sequences of these lengths, step by step: programs per request and
    head, how many of them have tokens to read, and in how many steps it is only one."""
    splits = num_splits(batch_size, num_heads, RANDOM_CONFIGS["gpt2"].n_positions)
    at_work = [len({program for *_, program in pieces_of(n, splits, by_turns=True)}) for n in context_lens]
    return {
        "programs a request and head": splits,
        "of them with tokens to read, on average": round(float(np.mean(at_work)), 1),
        "% of steps in which it is one": round(100 * float(np.mean(np.array(at_work) == 1))),
    }
