"""Where it pays to cut a model: from records of several models and numbers of GPUs, by code."""

from made_records import record_of

from labkit.bench.gains import all_gains, by_model, gains_table
from labkit.results.ranks import CUT, CUT_NCCL, ONE, RanksRun


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


def test_a_table_has_what_is_known_of_a_model_and_none_is_made_of_no_record():
    gains = all_gains([record("data/tiny-gpt2", 2, (1, 2, 3)), record("random:gpt2", 2, (0.01, 0.02, 0.015))])
    table = gains_table(gains)
    assert list(table.index) == ["gpt2"] * 2 + ["data/tiny-gpt2"] * 2
    assert table["a sum (µs)"].iloc[-1] == table["GB/s of each GPU"].iloc[-1] == "–"
    assert by_model(gains)["gpt2"]["2 × a"][32].verdict == "slower"
    assert gains_table([]).empty
