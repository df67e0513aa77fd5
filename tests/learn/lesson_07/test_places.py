"""Lesson 07: who reads what a program of the attention kernel writes."""

import pytest
import torch

from labkit import LADDER
from labkit.kernels import paged_attention_append_triton, triton_status
from labkit.learn.lesson_07 import engines, places

CPU, THIS = torch.device("cpu"), LADDER["07"].options
LAYERS = 3


@pytest.fixture(scope="module")
def model():
    return engines.small_gpt2(n_layer=LAYERS)


def test_no_program_touches_what_another_writes(model):
    """In steps of all kinds, requests that share blocks among them."""
    engine = engines.sharing_engine(model, THIS, CPU)
    for _ in range(7):
        rows, lengths = places.next_step_of(engine)
        engine.check_integrity()  # it was only looked at
        touched = places.places_touched(rows, lengths, 4)
        assert places.conflicts(touched) == 0
        assert [len(reads) for reads, _ in touched] == lengths
        engine.step()


@pytest.mark.parametrize(("lengths", "conflicts"), [((6, 6), 2), ((6, 7), 1), ((7, 6), 1)])
def test_a_shared_block_that_is_not_full_is_a_conflict(lengths, conflicts):
    touched = places.places_touched([[0, 1], [0, 1]], lengths, 4)
    assert places.conflicts(touched) == conflicts


KEYS = "k_cache_ptr"


@pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
def test_what_a_kernel_s_programs_touch_is_recorded_and_is_what_the_tables_say():
    tables, lengths = [[0, 2], [0, 3], [4, 5]], [6, 6, 4]
    run = places.record_attention(paged_attention_append_triton, tables, lengths, num_blocks=6)
    assert run.strays() == [] and len(run.programs) == 3
    touched = places.places_touched(tables, lengths, 4)
    found = [(set(), set()) for _ in tables]
    for offset, kind, (b, _) in run.touched(KEYS):
        block, _, place, _ = run.layouts[KEYS].index_of(offset)
        found[b][kind == "write"].add((block, place))
    assert found == [(reads, {written}) for reads, written in touched]
