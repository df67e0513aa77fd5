"""Host times: what compared cells of the notebooks do not show of them."""

import pytest
from made_records import host_time_of, host_time_record

from labkit.results import HostTime, slope_us


def test_a_layer_has_its_share_of_tables_and_append():
    time = HostTime(4, 2, (1e-3, 5e-3, 3e-3), (1e-4, 4e-3, 1e-4), (2e-4, 2e-4, 2e-3))
    assert time.layer_us == pytest.approx(1050)


def test_a_table_has_the_batch_sizes_that_are_asked_for():
    record = host_time_record([("00", host_time_of(8)), ("00", host_time_of(64))])
    assert record.table((64,)).to_dict("index") == {"00": {"B = 64": 1_000_000}}


def test_one_batch_size_has_no_slope():
    assert slope_us([host_time_of()]) is None
