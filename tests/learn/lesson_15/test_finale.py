"""Lesson 15's finale: one load on two engines, and the reader's parts named."""

import pytest
import torch

from labkit.kvcache import BlockPrefixCache
from labkit.learn.assembly import Assembly
from labkit.learn.kept import Kept
from labkit.learn.lesson_15.finale import guests, serve


@pytest.mark.slow
def test_both_engines_serve_the_same_requests_and_the_readers_has_their_part(tiny, tmp_path):
    found = []

    class Mine(BlockPrefixCache):
        def find(self, *args):
            found.append(super().find(*args))
            return found[-1]

    def never(*args):
        raise AssertionError("without a GPU, a toy graph stays out")

    parts = {Kept("08", "launch", tmp_path): never, Kept("14", "prefixes", tmp_path): Mine}
    load = guests(tiny, torch.device("cpu"), num_requests=4)
    served = serve(Assembly(list(parts), parts), load, rounds=2)
    assert served.parts == ["prefixes (14)"] and found
    assert [run.tokens for run in (*served.first, *served.yours)] == 8 * [sum(load.max_new_tokens)]
    first, all_tokens = served.waits.values()
    assert len(first.before_samples) == len(all_tokens.after_samples) == 4
    assert 0 < first.after_samples[0] < all_tokens.after_samples[0]
    assert repr(served).startswith("tokens per second: rung 00 ")
