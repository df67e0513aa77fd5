"""What each write of keys and values was asked for."""

import pytest
from helpers import make_engine

from labkit import LADDER, watch


@pytest.mark.parametrize(
    ("rung", "lengths", "path", "tensors"),
    [
        ("02", (5,), "indexed", ["batch_idx", "block_idx", "pos"]),
        ("03", (5,), "full_batch", ["block_idx"]),
        ("03", (5, 6), "generic", ["batch_idx", "block_idx", "pos"]),
        ("04", (5, 6), "identity_pos", ["block_idx", "pos"]),
    ],
)
def test_recorded_writes_are_those_of_the_step_and_what_reaches_the_kernel(
    tiny, rung, lengths, path, tensors
):
    engine = make_engine(tiny, options=LADDER[rung].options, prefix_cache=False)
    with watch.steady_decode(engine, watch.steady_prompts(2, lengths), warmup_steps=0):
        with watch.record_writes(engine) as writes:
            engine.step()
        engine.step()  # not recorded
        engine.check_integrity()
    assert len(writes) == tiny.config.n_layer
    write = writes[0]
    assert (write.path, write.batch_idx) == (path, (0, 1))
    assert write.pos == (1, lengths[-1] % 4)
    assert [name for name, value in write.told.items() if isinstance(value, tuple)] == tensors
    assert engine.stats().append_paths[path] == 2 * tiny.config.n_layer
