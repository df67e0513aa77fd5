"""The writes that the trials try."""

import pytest

from labkit.kvcache.kv_write import is_constant
from labkit.learn.gates.write_cases import BLOCK_SIZE, CASES, JOINED, NUM_BLOCKS, PAIRS


def test_every_kind_of_write_is_tried_with_heads_of_a_power_of_two_and_others():
    kinds = {(case.is_whole, is_constant(case.pos), case.head_dim == 16) for case in CASES}
    assert kinds == {(w, c, p) for w in (True, False) for c in (True, False) for p in (True, False)}


@pytest.mark.parametrize("case", [*CASES, *(case for pair in (*PAIRS, *JOINED) for case in pair)], ids=str)
def test_a_case_writes_each_slot_once_and_leaves_some_alone(case):
    slots = list(zip(case.block_idx, case.pos, strict=True))
    assert len(case.batch_idx) == len(set(slots)) == len(set(case.batch_idx)) <= case.batch_size
    assert max(case.block_idx) < NUM_BLOCKS and max(case.pos) < BLOCK_SIZE


def test_the_writes_of_a_pair_differ_in_one_list_alone():
    changed = []
    for first, second in PAIRS:
        names = [name for name, a, b in zip(first._fields, first, second, strict=True) if a != b]
        changed += names
        assert len(names) == 1
    assert set(changed) == {"batch_idx", "block_idx", "pos"}


def test_who_joins_or_leaves_is_at_the_end():
    assert [len(first.pos) < len(second.pos) for first, second in JOINED] == [False, True]
    for pair in JOINED:
        fewer, more = sorted(pair, key=lambda case: len(case.pos))
        for name in ("batch_idx", "block_idx", "pos"):
            assert getattr(more, name)[: len(fewer.pos)] == getattr(fewer, name)
        assert fewer.is_whole and more.is_whole and len(more.pos) == len(fewer.pos) + 1


def test_a_part_of_a_batch_is_tried_that_is_the_identity_as_far_as_it_goes():
    parts = [case.batch_idx for case in CASES if not case.is_whole]
    assert any(part == tuple(range(len(part))) for part in parts)
    assert any(part != tuple(range(len(part))) for part in parts)


def test_the_kinds_of_writes_have_words():
    assert {(case.is_whole, is_constant(case.pos)): case.kind for case in CASES} == {
        (True, True): "the whole batch goes to one slot",
        (True, False): "the whole batch goes to slots that differ",
        (False, True): "a part of the batch is written",
        (False, False): "a part of the batch is written",
    }
