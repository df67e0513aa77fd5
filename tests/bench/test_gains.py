"""Where it pays to cut a model: from records of several models and numbers of GPUs, by code."""

from dataclasses import replace

import pytest
from made_records import HOST, record_of

from labkit.bench.gains import all_gains, by_model, gains_table
from labkit.bench.limit import decode_weight_bytes, on_paper
from labkit.results.ranks import CUT, CUT_NCCL, ONE, RanksRun
from labkit.show import readme


def record(model, gpus, times, requests=(1, 32), sums_us=240.0):
    """Times of the three sides, each in two rounds, of 11 tokens a request."""
    kernels = {"_residual_sum_of_peers_kernel": sums_us, "ncclDevKernel_AllReduce_Sum": sums_us, "other": 9.0}
    runs = [
        RanksRun(side, n, seconds * n**0.5, 10 * n, kernels if i == 3 and side != ONE else {})
        for n in requests
        for side, seconds in zip((ONE, CUT, CUT_NCCL), times, strict=True)
        for i in range(4)
    ]
    settings = {"ranks": gpus, "prompt_tokens": 32, "max_new_tokens": 11, "rung": "14"}
    return record_of("ranks", runs, model=model, **settings)


RECORDS = [
    record("random:gpt2", 2, (0.01, 0.02, 0.015)),
    record("random:llama-3.1-8b", 4, (1.0, 0.4, 0.5)),
    record("random:llama-3.1-8b", 2, (1.0, 0.5, 0.8), requests=(1,)),
]


def test_every_record_has_its_rows_and_the_faster_way_to_sum_is_taken():
    gains = all_gains(RECORDS)
    assert [(gain.name, gain.requests, gain.gpus) for gain in gains] == [
        ("llama-3.1-8b", 1, 2),
        ("llama-3.1-8b", 1, 4),
        ("llama-3.1-8b", 32, 4),
        ("gpt2", 1, 2),
        ("gpt2", 32, 2),
    ]
    assert [gain.comparison.speedup for gain in gains] == pytest.approx([2, 2.5, 2.5, 0.667, 0.667], abs=0.01)
    assert gains[0].by_nccl.speedup == pytest.approx(1.25)
    assert by_model(gains)["gpt2"]["2 × a"][32].verdict == "slower"


def test_each_gpu_reads_its_share_of_the_weights_and_a_sum_has_its_price():
    gain = all_gains(RECORDS)[0]
    one, cut = gain.bandwidths
    weights = decode_weight_bytes(on_paper("llama-3.1-8b"))
    assert one == pytest.approx(10 * weights, rel=0.01)  # 10 steps in a second
    assert cut == pytest.approx(one)  # in half of the time, half of the bytes
    assert gain.sum_us == pytest.approx(2 * 240 / 64)  # both kernels, in 32 layers


def test_a_table_has_what_is_known_and_none_is_made_of_no_record():
    table = gains_table(all_gains([*RECORDS, record("data/tiny-gpt2", 2, (1, 2, 3))]))
    assert list(table.index) == ["llama-3.1-8b"] * 3 + ["gpt2"] * 2 + ["data/tiny-gpt2"] * 2
    assert table["a sum (µs)"].iloc[-1] == table["GB/s of each GPU"].iloc[-1] == "–"
    assert gains_table([]).empty


def test_the_page_has_a_table_for_each_kind_of_gpu(monkeypatch):
    other = replace(RECORDS[0], host=replace(HOST, device="another GPU"))
    monkeypatch.setattr(readme, "load_all", lambda kind: dict(enumerate([*RECORDS, other])))
    first, table, second, _ = readme.ranks_text().split("\n\n")
    assert "11 tokens a request, on one a GPU" in first and "on one another GPU" in second
    assert len(table.splitlines()) == 2 + 5
    monkeypatch.setattr(readme, "load_all", lambda kind: {})
    assert readme.ranks_text() == "We have no record yet."
