"""What a sampler costs: its sorts, its operators and its reads, and a clock that runs three in turn."""

import pytest
import torch

from labkit.kernels import draw_plain
from labkit.learn.lesson_12.cost import (
    MANNERS,
    VOCAB_SIZE,
    Timed,
    draw_sorted,
    large_batch,
    sorts_in_words,
    traffic,
    traffic_table,
)

pytestmark = pytest.mark.slow


def test_the_rung_below_sorts_twice_whoever_draws_and_a_search_never():
    assert sorts_in_words(draw_sorted) == "sorts in a step: 2 with top-k and top-p, 2 without"
    assert sorts_in_words(draw_plain) == "sorts in a step: 0 with top-k and top-p, 0 without"


def test_bytes_are_those_of_tensors_as_large_as_the_logits():
    def reads_once(logits, token_ids, *_):
        logits.amax(dim=-1)
        token_ids.clone()

    seen = traffic(reads_once, large_batch("both", 2))
    assert (seen.operators, seen.sorts, seen.num_bytes) == (2, 0, 2 * 4 * VOCAB_SIZE)


def test_the_table_has_a_row_per_manner_and_three_numbers_per_sampler():
    table = traffic_table({"below": draw_sorted, "package's": draw_plain}, batch_size=1)
    assert list(table.index) == list(MANNERS)
    assert table["sorts"].to_numpy().tolist() == [[2, 0]] * 4
    operators = table["operators"]["package's"]
    assert operators["top-p 0.95"] > 10 * operators["temperature 0.8"]


def test_large_batches_draw_in_their_first_rows():
    batch = large_batch("top-p 0.95", 3, drawing=1)
    assert batch.logits.shape == (3, VOCAB_SIZE) and batch.is_filtered
    assert batch.of_rows.temperatures.tolist() == [0.8, 0, 0]
    assert not large_batch("temperature 0.8", 2).is_filtered


def test_samplers_are_timed_in_turn_and_draw_the_same():
    batches = [large_batch("both", 2), large_batch("both", 2)]
    for batch, draw in zip(batches, (draw_sorted, draw_plain), strict=True):
        batch.give(draw)
    assert torch.equal(batches[0].token_ids, batches[1].token_ids)
    measured = Timed(torch.device("cpu"), 1).measure(draw_plain, "temperature 0.8", rounds=1)
    assert list(measured.seconds) == ["the rung below", "yours", "the package's"]
    assert all(len(runs) == 2 and min(runs) > 0 for runs in measured.seconds.values())
