"""Engines side by side, as recorded."""

from dataclasses import replace

import pytest
from made_records import record_of

from labkit.errors import RecordError
from labkit.results.peers import PeerSample


def sample(engine: str, seconds: float, first: float | None = 0.5, decode: float | None = 10.0) -> PeerSample:
    return PeerSample(engine, seconds, first, 100, decode, equal_requests=3, limit_seconds=0.5)


PEERS = record_of(
    "peers",
    [
        sample(engine, seconds, first, decode)
        for engine, seconds, first, decode in (
            ("labkit 00", 8.0, 0.5, 10.0),
            ("labkit 10", 1.0, 0.5, 10.0),
            ("transformers", 4.0, 0.5, 10.0),
            ("vllm", 2.0, None, None),
        )
        for _ in range(4)
    ],
    num_requests=4,
    left_out={"sglang": "not installed here"},
    static_cache_compiled=True,
    versions={"transformers": "5"},
)


def test_engines_are_ours_or_theirs():
    assert PEERS.engines == ["labkit 00", "labkit 10", "transformers", "vllm"]
    assert (PEERS.ours, PEERS.theirs) == ("labkit 10", "vllm")
    assert (PEERS.rates["vllm"], PEERS.rate("vllm")) == ([50] * 4, 50)
    assert (PEERS.decode_rate("transformers"), PEERS.decode_rate("vllm")) == (10, None)
    assert PEERS.limit == 200
    assert PEERS.comparison("vllm", "labkit 10").speedup == pytest.approx(2)
    assert PEERS.same_tokens("vllm") == 3
    with pytest.raises(RecordError, match="no runs of engine 'sglang'; it has labkit 00, "):
        PEERS.rate("sglang")


def test_the_table_of_peers():
    table = PEERS.table()
    assert list(table.loc["labkit 10"]) == ["100", "10", "500.0", "50.0"]
    assert list(table.loc["vllm"]) == ["50", "", "", "25.0"]


def test_where_nothing_was_decoded_there_is_no_limit():
    samples = (replace(PEERS.samples[0], limit_seconds=0.0), *PEERS.samples[1:])
    with pytest.raises(RecordError, match="limit_seconds is 0"):
        replace(PEERS, samples=samples).limit  # noqa: B018


def test_where_nobody_else_ran_there_is_no_fastest_of_them():
    ours = [s for s in PEERS.samples if s.engine.startswith("labkit")]
    theirs = [s for s in PEERS.samples if not s.engine.startswith("labkit")]
    with pytest.raises(RecordError, match=r"no runs of another engine; it has labkit 00, labkit 10"):
        replace(PEERS, samples=tuple(ours)).theirs  # noqa: B018
    with pytest.raises(RecordError, match=r"no runs of labkit; it has transformers, vllm"):
        replace(PEERS, samples=tuple(theirs)).ours  # noqa: B018
