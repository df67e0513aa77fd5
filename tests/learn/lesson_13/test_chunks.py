"""The class that the reader's chunk is built on: the package's chunk, in two methods."""

import random

from labkit.engine.packed_chunk import PackedChunk
from labkit.learn.lesson_13.chunks import InRows, Packed, all_to_first, pack_first


def test_in_two_methods_it_is_the_package_s_chunk():
    rng = random.Random(0)
    for _ in range(50):
        prompts = [tuple(rng.sample(range(90), rng.randint(1, 9))) for _ in range(rng.randint(1, 4))]
        done = [rng.randint(0, len(ids)) for ids in prompts]
        made, expected = (part(prompts, done, rng_room) for part in (InRows, PackedChunk) for rng_room in [6])
        assert vars(made) == vars(expected)


def test_one_prompt_at_a_time():
    assert all_to_first([0, 5, 2], 4) == [0, 4, 0] and all_to_first([0, 0], 4) == [0, 0]
    packed = pack_first([(1, 2), (3, 4, 5)], [2, 1], [0, 2])
    assert packed == Packed([4, 5], [1, 2], [0, 0, 2])
