"""Rows of logits: what each case holds, and that it is drawn as the rung below draws it."""

import pytest
import torch

from labkit.engine.sampling import sample_any, uniform_number
from labkit.learn.lesson_12.cases import (
    FILTERED,
    NOBODYS,
    NUMBERS_EACH,
    SUM_OF_SIX,
    UNFILTERED,
    WHOLE_VOCABULARY,
    Batch,
    Row,
)


@pytest.mark.parametrize(
    "case", (*UNFILTERED, *FILTERED, SUM_OF_SIX, WHOLE_VOCABULARY), ids=lambda case: case.contract
)
def test_the_package_draws_a_case_as_the_rung_below_with_a_sort_that_keeps_ties_in_order(case, monkeypatch):
    batch, sort = case.batch(), torch.Tensor.sort
    drawn = batch.drawn()
    monkeypatch.setattr(torch.Tensor, "sort", lambda *args, **settings: sort(*args, **settings, stable=True))
    assert torch.equal(sample_any(batch.logits, batch.of_rows), drawn)
    assert len(batch.rows) == NUMBERS_EACH * len(case.rows)
    assert case.is_filtered == (case not in UNFILTERED)


def test_slots_are_more_than_rows_and_in_another_order():
    batch = Batch.of([Row((0.0, 1.0), 0.5, 2, 0.9), Row((3.0, 1.0))], True, "cpu")
    assert batch.slot_mapping.tolist() == [2, 1]
    assert batch.state.temperatures.tolist() == [1.0, 0.0, 0.5, 1.0]
    assert batch.of_rows.top_ps.tolist() == [0.9, 1.0] and batch.of_rows.top_ks.tolist() == [2, 0]
    assert batch.token_ids.tolist() == [1, 0]
    assert batch.last_token_ids.tolist() == [NOBODYS, 0, 1, NOBODYS]
    assert batch.numbers.tolist() == [uniform_number(-99, 0), uniform_number(7820, 1)]


def test_a_row_says_what_it_asks_for():
    row = Row((0.0, 1.5) * 9, 0.5, top_k=3)
    assert str(row) == "temperature 0.5, top-k 3, top-p 1, logits 0, 1.5, 0, 1.5, 0, 1.5, 0, 1.5, …"
    assert row.is_filtered and not Row((0.0,), 0.0, top_k=3).is_filtered and not Row((0.0,), 1.0).is_filtered
