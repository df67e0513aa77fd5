"""What every record has."""

from dataclasses import replace

import pytest
from made_records import HOST, record_of, run_of, runs_record, traced

from labkit.errors import RecordError
from labkit.results import Host
from labkit.results.record import of_rung


def test_a_host_leaves_out_what_a_record_need_not_say():
    assert HOST.to_dict() == {
        "device": "a GPU",
        "driver": None,  # which a record must say, if only that there is none
        "cpu": "a CPU",
        "cpu_cores": 8,
        "python": "3.11",
        "torch": "2.9",
        "triton": None,
    }
    told = replace(HOST, threads=1)
    assert told.to_dict()["threads"] == 1
    assert Host.from_dict(told.to_dict()) == told and Host.from_dict(HOST.to_dict()) == HOST


def test_a_machine_is_called_by_its_model():
    assert HOST.machine == "a GPU"
    assert replace(HOST, device="Apple M3", cpu="Apple M3").machine == "Apple M3"
    assert replace(HOST, device="x86_64").machine == "a CPU"  # as older records have it


def test_a_record_s_kind_comes_first():
    assert next(iter(record_of("decode_kernels", [traced("10", 1, 2.0, 1.0)]).to_dict())) == "kind"


def test_an_older_record_says_nothing_of_reading_alone():
    told = record_of("decode_kernels", [traced("10", 1, 2.0, 1.0)], read_bandwidth=3e9)
    older = replace(told, read_bandwidth=None)
    assert told.to_dict()["read_bandwidth"] == 3e9 and "read_bandwidth" not in older.to_dict()
    assert [type(r).from_dict(r.to_dict()) for r in (told, older)] == [told, older]


def test_a_workload_is_told_by_the_settings():
    record = runs_record([("00", run_of())], num_requests=64, max_new_tokens=512, max_batch_size=32)
    assert (record.num_requests, record.max_new_tokens, record.max_batch_size) == (64, 512, 32)
    assert record.model == "none"


def test_samples_of_a_rung_keep_their_order():
    samples = [traced(rung, b, 2.0, 1.0) for rung, b in (("09", 8), ("10", 1), ("09", 1))]
    assert of_rung(samples, "09") == [samples[0], samples[2]]
    with pytest.raises(RecordError, match="no runs of rung '11'; it has 09, 10"):
        of_rung(samples, "11")
