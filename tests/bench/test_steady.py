"""Steady decode: the same requests in every step, and all blocks back at its end."""

from labkit.bench import steady_decode, time_decode_steps


def test_steady_decode_gives_every_block_back(engine):
    free = engine.stats().free_blocks
    with steady_decode(engine, [[1, 2], [3, 4, 5]]) as request_ids:
        assert len(request_ids) == engine.stats().running == 2
        assert len(time_decode_steps(engine, 3)) == 3
        assert {s.num_tokens for s in engine.scheduler.running.values()} == {2 + 6, 3 + 6}
    assert engine.stats().free_blocks == free and not engine.has_work
