"""The plan of a chunk: every token once, in order, within the budget; and wrong plans are refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine.packed_chunk import PackedChunk, counts_of
from labkit.errors import OptionError

PROMPTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6)


@given(PROMPTS, st.data(), st.integers(1, 9))
def test_every_token_is_in_one_chunk_in_order_and_chunks_are_full(prompts, data, max_tokens):
    at_first = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    num_computed, got = list(at_first), [[] for _ in prompts]
    while num_left := sum(map(len, prompts)) - sum(num_computed):
        chunk = PackedChunk(prompts, num_computed, max_tokens)
        counts = counts_of(chunk, prompts, num_computed, max_tokens)
        assert len(chunk.token_ids) == len(chunk.positions) == sum(counts) == min(max_tokens, num_left)
        assert chunk.context_lens == num_computed
        for p, (start, end) in enumerate(pairwise(chunk.starts)):
            got[p] += chunk.token_ids[start:end]
            assert chunk.positions[start:end] == list(range(num_computed[p], num_computed[p] + end - start))
        num_computed = [done + count for done, count in zip(num_computed, counts, strict=True)]
    assert got == [prompt[done:] for prompt, done in zip(prompts, at_first, strict=True)]


class Edited(PackedChunk):
    """A chunk of two prompts, with one attribute replaced."""

    def __init__(self, **edits):
        super().__init__(WAITING, [1, 0], 4)
        for name, value in edits.items():
            setattr(self, name, value)


WAITING = [(1, 2, 3), (4, 5, 6)]
WRONG = {
    "a token of another prompt": ({"token_ids": [2, 4, 4, 5]}, "token_ids are the next tokens"),
    "tokens without an end": ({"token_ids": range(10**12)}, "token_ids are the next tokens"),
    "positions of the chunk": ({"positions": [0, 1, 2, 3]}, "positions are the places"),
    "a prompt begins anew": ({"context_lens": [0, 0]}, r"context_lens is \[1, 0\], not \[0, 0\]"),
    "no end": ({"starts": [0, 2]}, r"starts has the 3 numbers from 0 on, not \[0, 2\]"),
    "no beginning": ({"starts": [1, 2, 4]}, "starts has the 3 numbers"),
    "more than there are": ({"starts": [0, 0, 4]}, "prompt 1 has 3 tokens left, of which it gets 4"),
    "more than there is room for": ({"starts": [0, 2, 5]}, "it has 5 tokens, but 1 to 4 are allowed"),
    "nothing": (
        {"starts": [0, 0, 0], "token_ids": [], "positions": []},
        "it has 0 tokens, but 1 to 4 are allowed",
    ),
}


@pytest.mark.parametrize(("edits", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_chunk_is_refused(edits, message):
    assert counts_of(Edited(), WAITING, [1, 0], 4) == [2, 2]
    with pytest.raises(OptionError, match=f"the part for batching made a wrong chunk: {message}"):
        counts_of(Edited(**edits), WAITING, [1, 0], 4)
