"""Lesson 06: the solutions of its exercises say what the package does."""

from prefilled_engines import THIS, prefilled

from labkit import watch
from labkit.learn.lesson_06.exercises import NEXT_PLACES


def test_the_solution_says_where_live_engines_write():
    """Blocks and places that the device looked up in three steps, some at a boundary, in each layer."""
    engine = prefilled(THIS)
    slots, device_step = engine.decode_step.slots, engine.decode_step.device_step
    expected, written = [], []

    def note_expected(*_):
        mapping = slots.slot_mapping[: len(engine.scheduler.running)].tolist()
        tables, lens = slots.block_tables.tolist(), slots.context_lens.tolist()
        expected.extend(NEXT_PLACES.solution(table, lens, mapping, 4) for table in tables)

    def note_written(k_cache, v_cache, key, value, block_idx, pos):
        written.append(list(zip(block_idx.tolist(), pos.tolist(), strict=True)))

    with (
        watch.replaced(device_step.attention, "kv_append", watch.noting(note_written)),
        watch.replaced(engine.decode_step, "device_step", watch.noting(note_expected)),
    ):
        for _ in range(3):
            engine.step()
    assert written == expected and {0, 3} <= {place for step in written for _, place in step}
