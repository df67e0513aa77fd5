"""A record of a model on one GPU and on two."""

import pytest
from made_records import record_of

from labkit.results.ranks import CUT, ONE, RanksRun


def test_what_cutting_gains():
    times = {ONE: (3.0, 3.0, 3.2, 3.2), CUT: (2.0, 2.0, 2.1, 2.1)}
    runs = [RanksRun(side, 4, t, 120, {}) for side, seconds in times.items() for t in seconds]
    record = record_of("ranks", runs, ranks=2, max_new_tokens=31)
    assert record.rate(ONE, 4) == pytest.approx((40 + 37.5) / 2)
    gain = record.comparison(CUT, 4)
    assert gain.speedup == pytest.approx(1.5, abs=0.03) and gain.verdict == "faster"
    row = record.table().loc[4]
    assert list(row.index) == ["tokens/s, one", "tokens/s, cut", "×, cut"]
    assert row["tokens/s, cut"] == "59" and row["×, cut"].startswith("1.5")
