"""What the host tells the GPU up to rung 05, in each write and in all."""

import pytest
from helpers import make_engine
from prefilled_engines import BELOW, PROMPTS, THIS, prefilled

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


def test_all_numbers_of_a_step_are_noted():
    engine = prefilled(BELOW)
    (told,) = watch.record_inputs(engine, 1)
    layers, places = engine.kv_manager.num_layers, engine.kv_manager.max_blocks_per_seq
    assert {name: len(numbers) for name, numbers in told.items()} == {
        "block tables": layers * len(PROMPTS) * places,
        "context lengths": 3,
        "token ids": 3,
        "positions": 3,
        "block_idx of each layer": 3 * layers,
        "pos of each layer": 3 * layers,
    }
    assert told["positions"] == [3, 2, 5] and told["pos of each layer"] == [3, 2, 1] * layers


def test_equal_positions_are_an_argument_and_no_tensor():
    engine = prefilled(BELOW, [(1, 2, 3), (4, 5, 6)])
    (told,) = watch.record_inputs(engine, 1)
    assert "pos of each layer" not in told


def test_an_engine_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="record_sends"):
        watch.record_inputs(prefilled(THIS), 1)
