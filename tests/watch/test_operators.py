"""Operators as PyTorch dispatches them, functions that count as one launch, and Python's calls."""

import sys

import pytest
import torch

from labkit import watch
from labkit.watch.operators import OperatorMode, storage, tensors_of


class Heard(OperatorMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def on_operator(self, func, args, kwargs, out):
        self.names.append(func.overloadpacket.__name__)

    def on_kernel(self, name, function, args, kwargs, out):
        self.names.append((name, function.__name__, len(args), sorted(kwargs), out.tolist()))


def twin(x, scale=1):
    return x.mul(scale).add(1)


def test_a_kernel_is_heard_of_once_and_what_it_dispatches_not_at_all():
    x = torch.ones(2)
    with Heard() as mode:
        x.sub(1)
        mode.as_kernel("a kernel", twin)(x, scale=3)
        x.neg()
    assert mode.names == ["sub", ("a kernel", "twin", 1, ["scale"], [4, 4]), "neg"]


def test_a_kernel_inside_another_is_part_of_it():
    x = torch.ones(2)
    with Heard() as mode:
        inner = mode.as_kernel("inner", twin)

        def outer(x):
            return inner(x).mul(2)

        mode.as_kernel("outer", outer)(x)
    assert [name[0] for name in mode.names] == ["outer"]


def test_integer_tensors_from_python_numbers_are_counted():
    with watch.OperatorCounter() as counter:
        torch.tensor([1, 2]), torch.tensor([1.0]), torch.ones(2).add(1)
    assert counter.index_tensors == 1 and counter.operators >= 4


def test_tensors_are_found_however_deep_and_views_share_their_storage():
    x, y = torch.zeros(4), torch.zeros(2)
    assert [t.shape for t in tensors_of(([x, {"y": y}], 3, None))] == [x.shape, y.shape]
    assert storage(x) == storage(x[2:]) != storage(y)


# --- Python's calls ---------------------------------------------------------------------------------------


def called():
    return None


def test_calls_inside_the_block_are_heard_of_and_none_outside():
    heard = []

    def on_event(frame, event, _):
        if event == "call":
            heard.append(frame.f_code.co_name)

    called()
    with watch.profiled_by(on_event):
        called()
    called()
    assert heard.count("called") == 1


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
