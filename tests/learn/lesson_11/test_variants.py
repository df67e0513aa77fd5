"""The measured variants: a table by the file, each beside rung 10 of the same run."""

from labkit.learn.lesson_11 import variants


def test_each_sample_has_rung_10_of_its_run_beside_it():
    samples = variants.measured()["samples"]
    table = variants.table()
    assert len(table) == len(samples) and list(table.index) == [sample["rows"] for sample in samples]
    assert all(sample["least_us"] <= sample["us"] for sample in samples)
    is_rung_10 = table["12 layers"] == variants.RUNG_10
    assert set(table["over rung 10"][is_rung_10]) == {"×1.00"}
    assert {(s["run"], s["rows"]) for s in samples} == {
        (s["run"], s["rows"]) for s in samples if s["variant"] == variants.RUNG_10
    }


def test_asking_ahead_is_what_the_first_rows_are_about():
    us = {s["variant"]: s["us"] for s in variants.measured()["samples"] if s["run"] == 1}
    assert us["weights: two phases ahead"] < us["weights: one phase ahead"] < us["weights: not asked ahead"]


def test_lines_name_the_device_and_fit_the_page():
    assert variants.source().startswith("NVIDIA H200, ")
    assert max(map(len, variants.source().splitlines())) <= 100
    assert variants.barriers() == "61 grid barriers alone: 55 us"
    assert variants.asked_early().endswith("1 requests +4 %, 8 requests +4 %, 64 requests +0 %")
