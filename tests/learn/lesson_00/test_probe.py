"""Lesson 00's probe: the result of an attention is the list of its weights."""

import torch

from labkit.learn.lesson_00.pieces import paged_attention
from labkit.learn.lesson_00.probe import (
    CONTEXT_LENS,
    NUM_SLOTS,
    TABLES,
    make_probe,
    place_of,
    slots_of,
    token_in,
)

CPU = torch.device("cpu")


def test_the_result_of_a_right_attention_has_a_weight_where_a_token_is_and_nowhere_else():
    out = paged_attention()(**vars(make_probe(CPU)))
    for b, weights_of_heads in enumerate(out):
        for weights in weights_of_heads:
            assert weights.nonzero()[:, 0].tolist() == sorted([*slots_of(b), NUM_SLOTS + b])
            torch.testing.assert_close(weights.sum(), torch.ones(()))
            assert float(weights[weights > 0].min()) > 1e-3  # large enough to be missed


def test_a_slot_belongs_to_the_token_whose_table_names_it():
    assert TABLES[0] == (3, 5) and CONTEXT_LENS[0] == 6
    assert slots_of(0) == [12, 13, 14, 15, 20, 21]
    assert (place_of(21), token_in(21)) == ("slot 1 of block 5", "token 5 of request 0")
    assert (place_of(22), token_in(22)) == ("slot 2 of block 5", "no token")
    assert place_of(NUM_SLOTS + 2) == "request 2's own new token"


def test_slots_without_a_token_can_be_filled_with_nan():
    probe = make_probe(CPU)
    with_nan = probe.with_nan()
    is_nan = with_nan.k_cache_layer.isnan().all(dim=3)[:, 0].flatten()  # by slot
    held = {slot for b in range(len(TABLES)) for slot in slots_of(b)}
    assert set(range(NUM_SLOTS)) - set(is_nan.nonzero()[:, 0].tolist()) == held
    assert not probe.k_cache_layer.isnan().any()
    assert paged_attention()(**vars(with_nan)).equal(paged_attention()(**vars(probe)))


def test_the_probe_is_the_same_each_time_and_a_copy_is_its_own():
    first, copied = make_probe(CPU), make_probe(CPU).copy()
    copied.query.zero_()
    assert make_probe(CPU).query.equal(first.query) and copied.query.eq(0).all()
