"""Lesson 01: the solutions of its exercises say what the package does."""

from helpers import make_manager

from labkit.learn.lesson_01.exercises import MUST_BE_MADE_ANEW, session_on


def test_exercise_1_agrees_with_the_session():
    for call in MUST_BE_MADE_ANEW.calls():
        signature, now = call["signature"], call["block_ids"]
        if signature is None:
            continue
        before = [8] * (signature[0] - 1) + [signature[1]] * (signature[0] > 0)
        session = session_on(make_manager(num_layers=1, max_blocks_per_layer=10), before)
        row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
        row[-1] = -1  # a row that is made anew loses this
        session.block_ids_per_layer[0][:] = now
        row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
        assert (row[-1] != -1) == MUST_BE_MADE_ANEW.solution(**call)
