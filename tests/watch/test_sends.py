"""What the host tells the device: rows of the block table, each write, and what is sent."""

import pytest
from helpers import make_engine
from prefilled_engines import BELOW, PROMPTS, THIS, prefilled

from labkit import LADDER, SamplingParams, watch


@pytest.fixture
def watched(tiny):
    """Two requests that share a cached prompt, one whose prompt fills its block, and one that waits."""
    engine = make_engine(tiny, options=LADDER["01"].options, max_blocks_per_layer=40, max_batch_size=3)
    engine.generate([[5] * 5], SamplingParams(1))
    for prompt, num_tokens in (([5] * 5, 12), ([5] * 5, 12), ([6] * 4, 7), ([7] * 3, 12)):
        engine.add_request(prompt, SamplingParams(num_tokens, stop_on_eos=False))
    return engine


def reasons_by_request(rows, layer_idx=0):
    of_layer = rows[rows["layer"] == layer_idx]
    return {request: group["reason"].tolist() for request, group in of_layer.groupby("request")}


def test_rows_change_at_first_at_boundaries_and_once_by_copy_on_write(watched):
    rows = watch.record_rows(watched, 14)
    kept = ["kept"] * 3
    of_sharers = ["first", "copy_on_write", *kept[:2], "boundary", *kept, "boundary", *kept[:2]]
    assert reasons_by_request(rows)[1] == reasons_by_request(rows)[2] == of_sharers
    assert reasons_by_request(rows)[3] == ["first", "boundary", *kept, "boundary"]
    assert reasons_by_request(rows)[4][:3] == ["first", "copy_on_write", "boundary"]
    for layer_idx in range(6):
        assert reasons_by_request(rows, layer_idx) == reasons_by_request(rows)
    of_first = rows[(rows["request"] == 1) & (rows["layer"] == 0)]
    assert of_first["tokens"].tolist() == list(range(5, 16))
    assert of_first["blocks"].tolist() == [2] * 4 + [3] * 4 + [4] * 3
    assert of_first["step"].tolist()[0] == 2  # the first step only admitted
    watched.check_integrity()


@pytest.mark.parametrize(("rung", "block_tables"), [("00", "rebuilt"), ("06", "resident")])
def test_an_engine_that_keeps_no_rows_is_refused(rung, block_tables):
    with pytest.raises(ValueError, match=f"block_tables='{block_tables}' keeps no rows"):
        watch.record_rows(make_engine(options=LADDER[rung].options), 1)


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


def test_the_sends_of_a_run():
    engine = prefilled(THIS, prefix_cache=True)
    sends = watch.record_sends(engine, 4)
    by_request = sends.requests.set_index(["request", "step"])
    assert by_request.loc[0, "sent"].tolist() == ["joined", "boundary", "nothing", "nothing"]
    assert by_request.loc[1, "sent"].tolist() == ["joined", "nothing", "boundary", "nothing"]
    assert by_request.loc[2, "sent"].tolist() == ["joined", "nothing", "nothing", "boundary"]
    assert by_request["took"].tolist()[:3] == ["copy_on_write"] * 3  # the prompts are kept
    assert sends.steps["mapping"].tolist() == [True, False, False, False]
    assert sends.steps["states"].tolist() == [3, 0, 0, 0]
    assert sends.steps["rows"].tolist() == [3, 1, 1, 1]
    assert sends.steps["copies"].tolist() == [1, 1, 1, 1]  # mapping, states and rows go in one
    # Words of 32 bits: two tables' rows; of who joins the length, and seven numbers of two words each.
    row = 2 * engine.kv_manager.max_blocks_per_seq
    max_batch = len(engine.decode_step.slots.slot_mapping)
    words = [2 * max_batch + 3 * (1 + 2 * 7) + 3 * row, row, row, row]
    # With each word its place, of 8 bytes; words travel two by two.
    assert sends.steps["bytes"].tolist() == [8 * (n + -(-n // 2)) for n in words]


def test_a_row_that_is_copied_after_the_join_is_told_apart():
    engine = prefilled(THIS, [(1, 2, 3, 4, 5)])
    watch.record_sends(engine, 1)
    (session,) = engine.scheduler.running.values()
    fork = session.fork()  # somebody else holds the last block now
    sends = watch.record_sends(engine, 1)
    assert sends.requests[["took", "sent"]].values.tolist() == [["copy_on_write", "copy_on_write"]]
    fork.release()
    engine.check_integrity()


def test_an_engine_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="'cached'"):
        watch.record_sends(prefilled(BELOW), 1)
    with pytest.raises(ValueError, match="record_sends"):
        watch.record_inputs(prefilled(THIS), 1)
