"""Rows of logits: what each case holds, and that it is drawn as the rung below draws it."""

import pytest
import torch

from labkit.engine.sampling import sample_any
from labkit.learn.lesson_12.cases import (
    FILTERED,
    NUMBERS_EACH,
    SUM_OF_SIX,
    UNFILTERED,
    WHOLE_VOCABULARY,
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
