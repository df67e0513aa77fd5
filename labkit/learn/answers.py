"""Whether two answers are the same, whatever they are made of."""

import math
import numbers
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

TOLERANCE = 1e-5  # of floats: a sum in another order, or in float32, is right, too
LONGEST = 400  # characters of a value in a sentence


def difference(answer: Any, expected: Any) -> str:
    """How an answer differs from the expected one, as "X, expected Y."; empty if it does not.

    Lists, tuples, ranges, NumPy arrays and tensors are the same if their items are; True is 1; floats are
    the same if they are close. A set is the same as a set only, for it has no order. Of dictionaries with
    the same keys, the first item that differs is told.
    """
    if is_same(plain(answer), plain(expected)):
        return ""
    if isinstance(answer, Mapping) and isinstance(expected, Mapping) and answer.keys() == expected.keys():
        wrong = {key: difference(answer[key], item) for key, item in expected.items()}
        return next(f"{key!r}: {sentence}" for key, sentence in wrong.items() if sentence)
    return f"{one_line(repr(answer))}, expected {one_line(repr(expected))}."


def beside(found: float, expected: float) -> tuple[str, str]:
    """Two numbers in so many digits that they differ."""
    digits = next((n for n in range(3, 9) if f"{found:.{n}f}" != f"{expected:.{n}f}"), 9)
    return f"{found:.{digits}f}", f"{expected:.{digits}f}"


def one_line(text: str) -> str:
    """A text for a sentence: without line breaks and addresses of objects, cut after LONGEST characters."""
    text = " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def plain(value: Any) -> Any:
    """Tensors, arrays and sequences as tuples, and their numbers as Python's, also inside of others."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return {plain(item) for item in value}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return tuple(map(plain, value))
    return value


def is_same(answer: Any, expected: Any) -> bool:
    """Whether two values that `plain` has made are the same."""
    if isinstance(expected, tuple):
        same_length = isinstance(answer, tuple) and len(answer) == len(expected)
        return same_length and all(map(is_same, answer, expected))
    if isinstance(expected, dict):
        same_keys = isinstance(answer, dict) and answer.keys() == expected.keys()
        return same_keys and all(is_same(answer[key], item) for key, item in expected.items())
    if isinstance(expected, numbers.Real) and isinstance(answer, numbers.Real):
        if isinstance(expected, float):
            return math.isclose(answer, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return answer == expected
    return type(answer) is type(expected) and bool(answer == expected)
