"""A batch held in a steady decode."""

from helpers import make_engine

from labkit.bench import time_decode_steps
from labkit.watch import steady_decode, steady_prompts


def test_steady_decode_gives_every_block_back():
    engine = make_engine(prefix_cache=False)
    free = engine.stats().free_blocks
    with steady_decode(engine, [[1, 2], [3, 4, 5]]) as request_ids:
        assert len(request_ids) == engine.stats().running == 2
        assert len(time_decode_steps(engine, 3)) == 3
        assert {s.num_tokens for s in engine.scheduler.running.values()} == {2 + 6, 3 + 6}
    assert engine.stats().free_blocks == free and not engine.has_work


def test_prompts_are_equal_or_ragged_as_asked():
    assert [len(p) for p in steady_prompts(3, (20,))] == [20, 20, 20]
    assert [len(p) for p in steady_prompts(4, (20, 23))] == [20, 23, 20, 23]
