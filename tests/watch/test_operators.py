"""Operators as PyTorch dispatches them, and Python's calls. Functions that count as one launch are in
tests/watch/test_launches.py."""

import sys

import pytest
import torch

from labkit import watch


def test_integer_tensors_from_python_numbers_are_counted():
    with watch.OperatorCounter() as counter:
        torch.tensor([1, 2]), torch.tensor([1.0]), torch.ones(2).add(1)
    assert counter.index_tensors == 1 and counter.operators >= 4


def test_who_listened_before_listens_again_even_after_an_error():
    def earlier(*_):
        return None

    sys.setprofile(earlier)
    try:
        with pytest.raises(ZeroDivisionError), watch.profiled_by(lambda *_: None):
            raise ZeroDivisionError
        assert sys.getprofile() is earlier
    finally:
        sys.setprofile(None)
