"""What the host sends in a step, and what of it is new to the device."""

import pytest
from helpers import small_model
from prefilled_engines import BELOW, THIS, prefilled

from labkit import SamplingParams, watch
from labkit.engine import InferenceEngine
from labkit.engine.step.slots import DeviceSlots
from labkit.learn.lesson_06 import traffic


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 6])
def test_what_is_new_is_what_a_block_was_taken_for(num_steps):
    """Of request 1, of two tokens: in the step that begins with 4, and of the others in theirs."""
    engine = prefilled(BELOW)
    watch.record_inputs(engine, num_steps - 1)
    held = [s.num_tokens for s in engine.scheduler.running.values()]
    (before,) = watch.record_inputs(engine, 1)
    picked = traffic.last_tokens(engine)
    (now,) = watch.record_inputs(engine, 1)
    table = traffic.what_is_new(before, now, picked, block_size=4)
    layers = engine.kv_manager.num_layers
    assert table.loc["block tables", "new to the GPU"] == layers * sum(n % 4 == 0 for n in held)
    assert table.loc["block_idx of each layer", "new to the GPU"] == layers * sum(
        (n + 1) % 4 == 0 for n in held
    )
    assert table["new to the GPU"].drop(["block tables", "block_idx of each layer", "all"]).sum() == 0
    assert table.loc["token ids", "its own tokens"] == 3
    assert (table["numbers"] == table.drop(columns="numbers").sum(axis=1)).all()


def test_what_is_sent_is_counted_alike_on_both_rungs():
    for options in (BELOW, THIS):
        steps = traffic.sent_until_done(prefilled(options, params=SamplingParams(6)))
        assert len(steps) == 5
        sent = steps["copies"].tolist()
        layers = 2
        if options is BELOW:
            assert sent == [4 + 2 * layers] * 5  # tables, lengths, tokens, positions; block_idx and pos
        else:
            assert sent[0] == 1 and set(sent[1:]) <= {0, 1}


def test_steady_traffic_is_what_the_boundaries_need():
    """Blocks of 4 and prompts of 20 and 23 tokens: a boundary of half the batch in two of four steps."""
    engine = prefilled(THIS, (), max_batch_size=8, max_blocks_per_layer=64)
    manager = engine.kv_manager
    words = 8 * manager.num_tables * manager.max_blocks_per_seq  # two to a number, and a place each
    told = traffic.steady_traffic(engine, num_steps=4)
    assert told == f"sent in 2 of 4 steps: 2 copies, {words + words // 2:,} numbers"
    assert not engine.has_work


def test_slots_that_raise_are_told_in_place_of_a_count():
    class Raises(DeviceSlots):
        def send_rows(self, sessions):
            raise KeyError("a slot")

    engine = InferenceEngine(small_model(), THIS, device="cpu", parts={"block_tables": Raises})
    told = traffic.steady_traffic(engine)
    assert told.startswith(
        "sent: not counted, because the engine raised KeyError: 'a slot', at `raise KeyError"
    )
