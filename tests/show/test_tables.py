"""Thousands separators in columns; compared cells of the notebooks have them in labels, too."""

import numpy as np
import pandas as pd
import pytest

from labkit import show


def test_large_numbers_are_separated_and_the_rest_is_as_it_was():
    frame = pd.DataFrame(
        {
            "whole": [98304, -1234, 999],
            "mixed": [np.int64(12288), "1234", 4890.9],
            "true": [True, False, True],
            "small": [1.5, 2.25, 999.0],
        }
    )
    shown = show.with_thousands(frame)
    assert shown["whole"].tolist() == ["98,304", "-1,234", 999]
    assert shown["mixed"].tolist() == ["12,288", "1234", "4,890.9"]
    pd.testing.assert_frame_equal(shown[["true", "small"]], frame[["true", "small"]])
    assert frame["whole"].tolist() == [98304, -1234, 999]


def test_a_column_of_fractions_keeps_its_decimals():
    shown = show.with_thousands(pd.DataFrame({"tokens/s": [4295.69, np.nan, -10621.0, 1.5, np.inf]}))
    assert shown["tokens/s"].tolist() == ["4,295.69", "NaN", "-10,621.00", "1.50", "inf"]


@pytest.mark.parametrize("numbers", [[1e12, 1e-9], [1000.0, 1e-9]])
def test_a_column_that_pandas_shows_by_exponents_stays_so(numbers):
    shown = show.with_thousands(pd.DataFrame({"n": numbers}))
    assert shown["n"].tolist() == [f"{n:.6e}" for n in numbers]
