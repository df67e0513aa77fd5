"""Lesson 11: reading the records side by side, and the parts of a step."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from labkit import LADDER, SchedulerConfig, bench, load_model, show
from labkit.bench.limit import decode_limit
from labkit.bench.workload import Workload
from labkit.learn import lesson_11

# --- records ------------------------------------------------------------------------------------------


def ladder_sample(rung, seconds):
    return {
        "rung": rung,
        "decode_seconds": seconds,
        "decoded_tokens": 100,
        "prefill_seconds": 0.5,
        "seconds": seconds + 0.5,
        "limit_seconds": 0.25,
        "append_paths": {},
    }


LADDER_RECORD = {"samples": [ladder_sample("00", 4.0)] * 4 + [ladder_sample("01", 1.0)] * 4}


def test_the_steps_of_a_ladder():
    table = lesson_11.steps_table(LADDER_RECORD)
    assert list(table.loc["00"]) == ["25", "6.2", "", "", ""]
    assert list(table.loc["01"]) == ["100", "25.0", "×4.00", "[4.000, 4.000]", "faster"]
    assert lesson_11.reached(LADDER_RECORD, "01") == pytest.approx(25)
    assert lesson_11.prefill_share(LADDER_RECORD, "01") == pytest.approx(100 / 3)


def test_rungs_of_several_workloads_in_one_table():
    later = {"samples": [ladder_sample("01", 2.0)]}
    rates = lesson_11.rates_table({"a": LADDER_RECORD, "b": later})
    assert rates.to_dict("list") == {"a": ["25 (6.2 %)", "100 (25.0 %)"], "b": ["", "50 (12.5 %)"]}
    assert lesson_11.prefill_table({"b": later}, ["01"]).loc["01", "b"] == "20.0 %"


def test_what_changed_from_rung_to_rung():
    table = lesson_11.changes_table()
    assert list(table.index) == list(LADDER)
    assert table.loc["01", "what changed"] == "block_tables: rebuilt → cached"
    assert table.loc["07", "what changed"].count(";") == 1
    assert table.loc["00", "what changed"] == ""
    assert table.loc["01", "after"] == "036"


def card(rung, model, lens, kernels):
    host = dict.fromkeys((*lesson_11.HOST_COLUMNS, "kv_bytes_written"), 1)
    device = {**dict.fromkeys(lesson_11.DEVICE_COLUMNS, 2), "kernels": kernels}
    key = {"model": model, "prompt_lens": lens}
    return {"rung": rung, "batch_size": 2, "key": key, "card": {"host": host, "device": device}}


def test_what_each_rung_removed_comes_from_the_cards_asked_for():
    record = {
        "samples": [
            card("01", "m", [20, 23], 7),
            card("00", "m", [20, 23], 9),
            card("00", "m", [20, 20], 1),
            card("00", "other", [20, 23], 1),
        ]
    }
    table = lesson_11.removed_table(record, "m", 2, (20, 23))
    assert list(table.index) == ["00", "01"] and list(table["kernels"]) == [9, 7]
    assert table.loc["00", "index tensors"] == 1


def test_host_times_by_rung_and_batch_size():
    lanes = {"num_layers": 2, "tables_seconds": [0.0], "append_seconds": [0.0]}
    samples = [{"rung": "00", "batch_size": b, "step_seconds": [b * 1e-6] * 3, **lanes} for b in (1, 8, 64)]
    table = lesson_11.host_table({"samples": samples}, (8, 64))
    assert table.to_dict("index") == {"00": {"B = 8": 8, "B = 64": 64}}


# --- peers --------------------------------------------------------------------------------------------


def peer_sample(engine, seconds, first=0.5, decode=10.0):
    return {
        "engine": engine,
        "seconds": seconds,
        "first_token_seconds": first,
        "tokens": 100,
        "tokens_per_second": 100 / seconds,
        "decode_tokens_per_second": decode,
        "equal_requests": 3,
        "limit_seconds": 0.5,
    }


PEERS = {
    "settings": {"num_requests": 4},
    "samples": [
        peer_sample(engine, seconds, first, decode)
        for engine, seconds, first, decode in (
            ("labkit 00", 8.0, 0.5, 10.0),
            ("labkit 10", 1.0, 0.5, 10.0),
            ("transformers", 4.0, 0.5, 10.0),
            ("vllm", 2.0, None, None),
        )
        for _ in range(4)
    ],
}


def test_peers_are_compared_with_our_last_rung():
    assert lesson_11.best_of_ours(PEERS) == "labkit 10"
    assert lesson_11.best_of_theirs(PEERS) == "vllm"
    assert lesson_11.peer_rates(PEERS)["vllm"] == [50] * 4
    assert lesson_11.peer_limit(PEERS) == 200
    assert lesson_11.peer_comparison(PEERS, "vllm", "labkit 10").speedup == pytest.approx(2)
    notes = lesson_11.peer_notes(PEERS)
    assert notes["transformers"] == "labkit 10: ×4.00 [4.00, 4.00]" and "labkit 10" not in notes


def test_the_table_of_peers():
    table = lesson_11.peers_table(PEERS)
    assert list(table.loc["labkit 10"]) == ["100", "10", "500.0", "50.0"]
    assert list(table.loc["vllm"]) == ["50", "", "", "25.0"]


def test_whose_tokens_a_peer_made():
    table = lesson_11.same_tokens_table({"here": PEERS})
    assert table.loc["vllm", "here"] == "3 of 4"


def test_rungs_that_another_engine_is_ahead_of():
    peers = {
        "samples": [peer_sample("transformers", 4.0, decode=30.0), peer_sample("other", 9.0, decode=9.0)]
    }
    assert lesson_11.slower_rungs(LADDER_RECORD, peers) == {"transformers": "00", "other": "none"}
    assert lesson_11.slower_rungs(LADDER_RECORD, PEERS) == {"transformers": "none"}


def test_peers_are_drawn_from_the_slowest_to_the_limit():
    fig = show.draw_peers(lesson_11.peer_rates(PEERS), 400, lesson_11.peer_notes(PEERS))
    (axes,) = fig.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["labkit 00", "transformers", "vllm", "labkit 10", "the hardware's limit"]
    assert axes.get_xscale() == "log"
    assert "labkit 10: ×2.00 [2.00, 2.00]" in [text.get_text() for text in axes.texts]
    plt.close(fig)


def test_near_rates_are_drawn_from_zero():
    fig = show.draw_peers({"a": [10.0, 11.0], "b": [12.0]})
    (axes,) = fig.axes
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == 0
    plt.close(fig)


# --- the rest of the gap ------------------------------------------------------------------------------

STEP = {
    "rung": "10",
    "batch_size": 2,
    "context_len": 9,
    "step_us": 100.0,
    "gpu_busy_us": 95.0,
    "kernels": [
        {"name": "_split_paged_attn_append_kernel", "count": 12, "us": 20.0},
        {"name": "_norm_linear_kernel", "count": 24, "us": 30.0},
        {"name": "_linear_residual_kernel", "count": 24, "us": 10.0},
        {"name": "nvjet_hsh_64x8", "count": 1, "us": 25.0},
        {"name": "void at::native::layer_norm(float*)", "count": 1, "us": 7.0},
        {"name": "Memcpy DtoH (Device -> Pinned)", "count": 1, "us": 3.0},
    ],
}
BANDWIDTH = 2e12


def test_a_step_s_parts_are_the_whole_step():
    parts = lesson_11.step_parts(STEP)
    assert list(parts.values()) == [20, 40, 25, 10, 5]
    assert sum(parts.values()) == STEP["step_us"]


@pytest.mark.slow
def test_the_floors_are_the_limit_of_the_step():
    floors = lesson_11.step_floors(STEP, BANDWIDTH)
    limit = decode_limit(load_model("random:gpt2").gpt2.half(), [9, 9], BANDWIDTH)
    assert sum(floors.values()) == pytest.approx(1e6 * limit.seconds)
    assert floors[lesson_11.ATTENTION] == pytest.approx(1e6 * limit.kv_bytes / BANDWIDTH)


def test_the_gap_is_shared_out():
    table = lesson_11.gap_table(STEP, BANDWIDTH)
    assert sum(table["% of the gap"].astype(float)) == pytest.approx(100, abs=2)
    assert table.loc[lesson_11.IDLE, "at the limit"] == 0
    assert list(lesson_11.rest_table(STEP).index) == ["layer_norm", "Memcpy DtoH"]


def test_what_one_kernel_takes():
    table = lesson_11.kernels_table(STEP, BANDWIDTH)
    assert list(table["kernels a step"]) == [12, 48, 1]
    assert table.loc[lesson_11.HEAD, "us each"] == 25.0


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void at::native::(anonymous namespace)::norm<float, 2>(int, float*)", "norm"),
        ("_embed_slots_kernel", "_embed_slots_kernel"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
    ],
)
def test_kernels_have_short_names(kernel, short):
    assert lesson_11.short_name(kernel) == short


def test_idle_time_by_rung():
    record = {"samples": [{**STEP, "idle_share": 0.05}, {**STEP, "batch_size": 64, "idle_share": 0.5}]}
    assert list(lesson_11.idle_table(record, 2).loc["10"]) == [100, 95, "5 %", 63]


def test_a_step_is_found_by_its_rung_and_batch():
    record = {"samples": [STEP]}
    assert lesson_11.kernel_sample(record, "10", 2) is STEP
    with pytest.raises(ValueError, match="no step of rung 10 at B = 3"):
        lesson_11.kernel_sample(record, "10", 3)


def test_the_parts_are_drawn_over_their_floors():
    both = lesson_11.step_parts(STEP), lesson_11.step_floors(STEP, BANDWIDTH)
    fig = show.draw_step_parts({"B = 2": both})
    (axes,) = fig.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["B = 2, measured", "B = 2, at the limit"]
    assert axes.texts[0].get_text().strip() == "100 µs"
    plt.close(fig)


# --- here and now -------------------------------------------------------------------------------------


def test_every_rung_runs_in_turn():
    scheduler = SchedulerConfig(max_batch_size=2, prefill_max_batch_size=2)
    work = Workload(load_model("data/tiny-gpt2"), ((1, 2), (3,)), 3, device="cpu", scheduler=scheduler)
    runs = lesson_11.run_every_rung(work, ("00", "10"), rounds=1)
    assert list(runs) == ["00", "10"] and all(len(made) == 2 for made in runs.values())
    compared = lesson_11.compared(runs, "00", "10")
    assert compared.after_samples == tuple(run.decode_seconds for run in runs["10"])
    assert "fused" in compared.after_paths and "fused" not in compared.before_paths


def test_agreement_is_told_by_engine():
    table = pd.DataFrame({"00 = dense": [True, True], "00 = hf": [True, False], "10 = dense": [True, True]})
    made = lesson_11.agreement(table)
    assert made.loc["00"].to_dict() == {"= dense": "2 of 2", "= hf": "1 of 2"}


def test_the_live_table_has_a_row_a_rung():
    engine_cards = {"05": bench.CostCard(1, {}, bench.cost_cards.HostCounts(1, 2, 3, 4, 5), None)}
    table = lesson_11.live_table(engine_cards)
    assert table.loc["05"].to_dict() == {
        "calls into the manager": 1,
        "records created": 2,
        "index tensors": 4,
        "operators": 3,
    }


def test_a_model_on_paper_takes_no_memory():
    gpt2 = lesson_11.on_paper()
    assert gpt2.wte.weight.is_meta and gpt2.wte.weight.dtype == torch.float16
