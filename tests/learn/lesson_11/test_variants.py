"""The measured variants: tables by the files, each time beside rung 10 of the same load or the whole batch of
the same run."""

import pytest

from labkit.learn.lesson_11 import variants


def test_every_sample_has_rung_10_of_its_load_or_run_beside_it():
    us, layers = variants.step_us(), variants.measured().layers.samples
    assert len(us) == len(variants.measured().steps.samples)  # no load and variant twice
    assert {key[:2] for key in us} == {key[:2] for key in us if key[2] == variants.RUNG_10}
    runs = {(s.run, s.rows) for s in layers}
    assert runs == {(s.run, s.rows) for s in layers if s.variant == variants.RUNG_10}


def test_a_median_lies_between_least_and_most():
    for sample in variants.measured().steps.samples:
        assert 0 < sample.least_us <= sample.us <= sample.most_us
    assert all(0 < s.least_us <= s.us for s in variants.measured().layers.samples)


def test_a_change_is_a_time_and_its_percent():
    assert variants.change(586.3, 639.0) == "586 (-8.2 %)"
    assert variants.change(10.0, 10.0) == "10 (+0.0 %)"


def test_lanes_are_told_load_by_load():
    lines = variants.lanes_lines()
    assert lines[0] == " 16 requests of        512 tokens: 372 -> 404 (+8.9 %)"
    assert lines[3] == " 64 requests of 256 to 512 tokens: 639 -> 586 (-8.2 %)" and len(lines) == 7


def test_asking_early_is_told_for_each_load_that_has_it():
    table = variants.early_table()
    assert list(table.index)[:2] == ["1 x 512", "8 x 512"]
    assert list(table.loc["1 x 512"]) == ["278", "267 (-3.9 %)", "266 (-4.2 %)"]
    assert table.loc["128 x 128", "keys and values, too"] == ""


def test_models_are_told_by_the_size_of_their_layers():
    table = variants.models_table()
    assert list(table["a layer (MB)"].astype(int)) == sorted(table["a layer (MB)"].astype(int))
    whole = {name: row for name, row in table.iterrows() if row[variants.IN_HALVES]}
    small, large = whole["gpt2, 64 x 512"], whole["gpt2-medium, 64 x 512"]
    assert (small["a layer (MB)"], large["a layer (MB)"]) == ("14", "25")
    assert "-" in small[variants.IN_HALVES] and "+" in large[variants.IN_HALVES]
    samples = variants.part("models").samples
    assert len({(s.model, s.rows, s.new_tokens) for s in samples}) == len(table)
    assert all(len(s.seconds) == 4 for s in samples)


def test_orders_are_those_of_the_lanes_beside_rung_10():
    (column,) = variants.orders_table().columns
    told = variants.orders_table()[column]
    assert len(told) == len(variants.ORDERS) and told["rung 10"] == "639 (+0.0 %)"
    assert told["side stream of high priority"] == "825 (+29.1 %)"


def test_the_kernel_of_all_layers_is_told_without_rung_10s_own_rows():
    table = variants.layers_table()
    assert list(table.index) == [1, 1, 1, 1, 1, 2, 4, 8]
    assert list(table["times as fast"])[:3] == ["×1.05", "×1.19", "×1.21"]
    assert variants.barriers() == "61 grid barriers alone: 55 us"


MEASURED = [
    ("steps", 22),
    ("layers", 22),
    *((f"ends.{what}", 23) for what in ("steps", "tokens", "graphs", "host")),
]


@pytest.mark.parametrize(("what", "day"), MEASURED)
def test_the_source_names_the_device_and_the_day_and_fits_the_page(what, day):
    assert variants.source(what).startswith(f"NVIDIA H200, 2026-11-{day}: ")
    assert max(map(len, variants.source(what).splitlines())) <= 100


@pytest.mark.parametrize("what", ["", "device", "grid_barriers", "ends", "ends.lanes", "steps.samples"])
def test_a_part_that_was_not_measured_is_refused_by_name(what):
    with pytest.raises(ValueError, match=f"latency_variants_h200.json has no measured part '{what}'"):
        variants.source(what)


def test_microseconds_of_an_unknown_part_of_the_ends_are_refused():
    with pytest.raises(ValueError, match=r"no measured part 'ends\.layers'"):
        variants.ends_us("layers")


@pytest.mark.parametrize("what", ["alone", "steps", "graphs", "host"])
def test_ends_are_medians_of_the_same_requests_each_once(what):
    samples, us = variants.part(f"ends.{what}").samples, variants.ends_us(what)
    assert len(us) == len(samples) and variants.sizes(us) == [1, 8, 64, 128]
    assert all(0 < s.least_us <= s.us <= s.most_us for s in samples)


def test_of_a_form_the_fastest_of_its_variations_is_told():
    us = {(1, "b"): 3.0, (1, "b, early"): 2.0, (1, "a, b"): 1.0, (8, "b"): 0.5}
    assert variants.fastest(us, 1, "b") == 2.0


def test_ends_are_told_beside_rung_11_and_for_the_most_requests_alone():
    table = variants.ends_table()
    assert list(table.columns) == ["1", "8", "64", "128", "128, the end alone"]
    assert list(table.loc["rung 11"]) == ["204", "306", "571", "871", "38"]
    assert list(table.loc["its layers alone"]) == ["173", "276", "528", "818", ""]
    assert list(table.loc["the head, too"])[2:] == ["565 (-1.1 %)", "855 (-1.7 %)", "31 (-18.2 %)"]
    folded = list(table.loc["the norm, too: folded into the head"])
    assert folded[0] == "200 (-1.8 %)" and folded[3:] == ["873 (+0.2 %)", "47 (+24.2 %)"]


def test_other_tokens_are_told_of_the_folded_norm_alone():
    name = "the norm, too: folded into the head"
    assert variants.tokens_lines() == [
        f"{name}: 1 of 64 requests had another token",
        f"{name}: 2 of 128 requests had another token",
    ]


def test_steps_in_a_graph_are_told_with_and_without_reading():
    table = variants.graphs_table()
    assert list(table["64"]) == ["570 (+0.0 %)", "569 (-0.2 %)", "578 (+0.0 %)", "569 (-1.4 %)"]
    assert list(table.index)[::3] == ["1 in a graph, replays alone", "4 in a graph, read one behind"]


def test_ways_to_the_host_are_told_beside_rung_11s_copy():
    table = variants.host_table()
    assert list(table["64"]) == ["578", "571 (-1.2 %)", "563 (-2.6 %)", "562 (-2.7 %)"]
    assert list(table["1"]) == ["212", "208 (-1.8 %)", "201 (-5.4 %)", "199 (-6.0 %)"]
    assert list(table.index)[2:] == ["straight to the host", "the same, 4 steps in a graph"]


# --- of an H100 ------------------------------------------------------------------------------------


def test_how_often_is_asked_is_told_for_numbers_and_threads():
    assert variants.asks_line(16, 4) == (
        "16 numbers, 128 threads: 8 requests for each by every thread that holds it, 1 by the first of them"
    )
    for s in variants.H100.part("asks").samples:
        assert (s.every_thread, s.once) == (max(1, 32 * s.warps // s.numbers), 1)


def test_weights_early_are_told_by_every_thread_and_once_each_beside_its_own_whole_batch():
    table = variants.once_table()
    assert list(table.index) == ["16 x 512", "64 x 512"]
    assert list(table.loc["64 x 512"]) == ["316", "329 (+4.0 %)", "316 (+0.2 %)"]
    assert list(table.loc["16 x 512"]) == ["188", "183 (-2.3 %)", "182 (-3.1 %)"]


def test_what_is_asked_for_ahead_is_told_beside_whole_batches():
    (column,) = variants.ahead_table().columns
    told = variants.ahead_table()[column]
    assert told[variants.WHOLE] == "316 (+0.0 %)" and told[variants.IN_HALVES] == "290 (-8.3 %)"
    assert told["next keys and values, 32 tokens per program"] == "313 (-1.2 %)" and len(told) == 8


def test_room_beside_attention_is_told_beside_halves():
    table = variants.beside_table()
    assert list(table.columns) == ["32", "64", "128"]
    assert list(table.loc[variants.IN_HALVES]) == ["437 (+0.0 %)", "540 (+0.0 %)", "621 (+0.0 %)"]
    assert list(table.loc["in halves, with the best tiles tried"]) == ["", "530 (-1.9 %)", ""]


def test_models_on_an_h100_have_weights_asked_for_once():
    table = variants.models_table(variants.H100)
    assert list(table.loc["gpt2-medium, 64 x 512"]) == ["25", "770", "918 (+19.3 %)", "765 (-0.6 %)"]
    assert list(table.loc["gpt2, 8 x 512"]) == ["14", "172", "", "163 (-4.9 %)"]


@pytest.mark.parametrize("what", ["asks", "once", "models", "ahead", "beside"])
def test_samples_of_an_h100_are_there_once_and_lie_between_least_and_most(what):
    samples = variants.H100.part(what).samples
    assert variants.H100.source(what).startswith("NVIDIA H100 80GB HBM3, 2026-11-24: ")
    keys = [tuple(v for k, v in vars(s).items() if k not in MEASURES) for s in samples]
    assert len(keys) == len(set(keys))
    for s in samples:
        for unit in {"us", "ms"} & set(vars(s)):
            least, most = getattr(s, f"least_{unit}"), getattr(s, f"most_{unit}")
            assert 0 < least <= getattr(s, unit) <= most


MEASURES = (
    "seconds",
    "every_thread",
    "once",
    *(f"{e}{u}" for e in ("", "least_", "most_") for u in ("us", "ms")),
)
