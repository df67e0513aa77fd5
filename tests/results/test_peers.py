"""Engines side by side, as recorded: on one workload, on loads, and drawing in several ways."""

import pytest
from made_records import record_of

from labkit.errors import RecordError
from labkit.results import load
from labkit.results.peers import PeerSample, SamplingRun


def sample(engine: str, seconds: float) -> PeerSample:
    first, decode = (None, None) if engine == "vllm" else (0.5, 10.0)
    return PeerSample(engine, seconds, 100, first, decode, equal_requests=3, limit_seconds=0.5)


SECONDS_OF = {"labkit 00": 8.0, "labkit 10": 1.0, "transformers": 4.0, "vllm": 2.0}
PEERS = record_of(
    "peers",
    [sample(*each) for each in SECONDS_OF.items() for _ in range(4)],
    num_requests=4,
    left_out={"sglang": "not installed here"},
    static_cache_compiled=True,
    versions={"transformers": "5"},
)


def test_engines_are_ours_or_theirs():
    assert PEERS.engines == ["labkit 00", "labkit 10", "transformers", "vllm"]
    assert (PEERS.ours, PEERS.theirs) == ("labkit 10", "vllm")
    assert PEERS.comparison("vllm", "labkit 10").speedup == pytest.approx(2)
    assert PEERS.same_tokens("vllm") == 3
    with pytest.raises(RecordError, match="no runs of engine 'sglang'; it has labkit 00, "):
        PEERS.rate("sglang")


def test_the_table_of_peers():
    table = PEERS.table()
    assert list(table.loc["labkit 10"]) == ["100", "10", "500.0", "50.0"]
    assert list(table.loc["vllm"]) == ["50", "", "", "25.0"]


# --- loads: what a record does not have; what it has, BENCHMARKS.md shows -----------------------------


def test_what_was_not_recorded_is_none_or_an_error_that_says_what_there_is():
    loads = load("loads_cpu")
    assert loads.rate("arrivals", "transformers, dynamic cache") is None  # which has no way to serve them
    with pytest.raises(RecordError, match="no runs of load 'busy' and engine 'labkit 10'"):
        loads.rate("busy", "labkit 10")


# --- batches that draw in several ways, on two rungs ---------------------------------------------------

SECONDS = {"greedy": {"11": 1.0, "12": 1.0}, "top-p": {"11": 4.0, "12": 2.0}}
SAMPLING = record_of(
    "sampling",
    [
        SamplingRun(manner, rung, seconds, 10, 64, 3 + (rung == "11"))
        for manner, of_rungs in SECONDS.items()
        for rung, seconds in of_rungs.items()
        for _ in range(4)
    ],
    num_requests=4,
    max_new_tokens=16,
    max_batch_size=4,
)


def test_the_rungs_are_compared_manner_by_manner():
    compared = SAMPLING.comparison("top-p", "11", "12")
    assert compared.speedup == 2 and compared.verdict == "faster"
    table = SAMPLING.table()
    assert table.loc["top-p"].tolist() == ["400,000", "200,000", "×2.00 [2.000, 2.000]", "faster", "3 of 4"]
