"""A record of readers whom one replica and several serve."""

import pytest
from made_records import record_of

from labkit.results.http import counted
from labkit.results.replicas import ReplicasRun


def run(replicas, policy, seconds, reused):
    felt = {"ttft": (0.001, 0.003), "itl": counted((0.002, 0.002003, 0.002, 0.005))}
    return ReplicasRun(
        policy,
        seconds,
        120,
        60,
        busy=0.5,
        replicas=replicas,
        prompt_tokens=1000,
        reused=reused,
        answered=(),
        **felt,
    )


def test_what_a_replica_adds_and_what_is_reused():
    runs = [run(1, "prefix", 2.0, (900,)), run(1, "prefix", 4.0, (940,)), run(1, "prefix", 3.0, (920,))]
    runs += [run(2, "prefix", 2.0, (500, 420)), run(2, "round-robin", 2.5, (300, 400))]
    runs = [*runs[3:], *runs[:3]]  # the order in which applications started is no matter
    about = {"load": "shared-prefix", "requests": 4, "prefixes": 2, "ingresses": 1}
    record = record_of("replicas", runs, **about, within=0.0)
    assert (record.rate(1, "prefix"), record.rate(2, "prefix")) == (40, 60)
    assert record.reused(2, "round-robin") == pytest.approx(0.7)
    table = record.table()
    assert list(table.index) == ["1, prefix", "2, prefix", "2, round-robin"]
    assert list(table["tokens/s"]) == ["40 [30, 60]", "60", "48"]
    row = table.loc["2, prefix"]
    assert (row["×"], row["tokens reused"], row["tokens/frame"]) == ("1.50", "92.0%", "2.0")
    assert (row["TTFT p50"], row["ITL p50"], row["ITL p99"]) == ("2.00", "2.00", "4.91")
    later = record_of("replicas", runs, **about, within=2.0)
    assert "×" not in later.table().columns  # for its rate is that of the readers
