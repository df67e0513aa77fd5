"""Lesson 11: reading the records side by side, and the parts of a step."""

import pandas as pd
import pytest
from made_records import card_of, card_record, record_of, run_of, runs_record, traced

from labkit import LADDER, SchedulerConfig, load_model, show
from labkit.bench.limit import decode_limit
from labkit.bench.workload import Workload
from labkit.learn import lesson_11
from labkit.results import CostCard, HostCounts, KernelTime
from labkit.results.kernels import ATTENTION, HEAD, IDLE, part_us
from labkit.results.peers import PeerSample

# --- records ------------------------------------------------------------------------------------------


def ladder(**seconds: float):
    """Four runs of each rung that decode 100 tokens in so many seconds, after half a second of prompts."""
    runs = {rung[1:]: run_of(s, s + 0.5, prefill_seconds=0.5) for rung, s in seconds.items()}
    return runs_record([*runs.items()] * 4, limit_seconds=0.25)


def test_what_prompts_take_in_several_workloads():
    table = lesson_11.prefill_table({"a": ladder(r01=1.0), "b": ladder(r01=2.0)}, ["01"])
    assert list(table.loc["01"]) == ["33.3 %", "20.0 %"]


def test_what_changed_from_rung_to_rung():
    table = lesson_11.changes_table()
    assert list(table.index) == list(LADDER)
    assert table.loc["01", "what changed"] == "block_tables: rebuilt → cached"
    assert table.loc["07", "what changed"].count(";") == 1
    assert table.loc["00", "what changed"] == ""
    assert table.loc["01", "after"] == "036"


def test_what_each_rung_removed_comes_from_the_cards_asked_for():
    record = card_record(
        [
            ("01", 2, "m", (20, 23), card_of(7, index_tensors=1)),
            ("00", 2, "m", (20, 23), card_of(9, index_tensors=1)),
            ("00", 2, "m", (20, 20), card_of(1)),
            ("00", 2, "other", (20, 23), card_of(1)),
        ]
    )
    table = lesson_11.removed_table(record, "m", 2, (20, 23))
    assert list(table.index) == ["00", "01"] and list(table["kernels"]) == [9, 7]
    assert table.loc["00", "index tensors"] == 1


# --- peers --------------------------------------------------------------------------------------------


def peer_sample(engine, seconds, first=0.5, decode=10.0):
    return PeerSample(engine, seconds, first, 100, decode, equal_requests=3, limit_seconds=0.5)


def peers_record(*samples):
    return record_of("peers", samples, num_requests=4)


PEERS = peers_record(
    *(
        peer_sample(engine, seconds, first, decode)
        for engine, seconds, first, decode in (
            ("labkit 00", 8.0, 0.5, 10.0),
            ("labkit 10", 1.0, 0.5, 10.0),
            ("transformers", 4.0, 0.5, 10.0),
            ("vllm", 2.0, None, None),
        )
        for _ in range(4)
    )
)


def test_peers_are_compared_with_our_last_rung():
    notes = lesson_11.peer_notes(PEERS)
    assert notes["transformers"] == "labkit 10: ×4.00 [4.00, 4.00]" and "labkit 10" not in notes


def test_whose_tokens_a_peer_made():
    table = lesson_11.same_tokens_table({"here": PEERS})
    assert table.loc["vllm", "here"] == "3 of 4"


def test_rungs_that_another_engine_is_ahead_of():
    peers = peers_record(peer_sample("transformers", 4.0, decode=30.0), peer_sample("other", 9.0, decode=9.0))
    assert lesson_11.slower_rungs(ladder(r00=4.0, r01=1.0), peers) == {"transformers": "00", "other": "none"}
    assert lesson_11.slower_rungs(ladder(r00=4.0, r01=1.0), PEERS) == {"transformers": "none"}


def test_peers_are_drawn_from_the_slowest_to_the_limit():
    fig = show.draw_peers(PEERS.rates, 400, lesson_11.peer_notes(PEERS))
    (axes,) = fig.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["labkit 00", "transformers", "vllm", "labkit 10", "the hardware's limit"]
    assert axes.get_xscale() == "log"
    assert "labkit 10: ×2.00 [2.00, 2.00]" in [text.get_text() for text in axes.texts]


# --- the rest of the gap ------------------------------------------------------------------------------

STEP = traced(
    "10",
    2,
    100.0,
    95.0,
    (
        KernelTime("_split_paged_attn_append_kernel", 12, 20.0),
        KernelTime("_norm_linear_kernel", 24, 30.0),
        KernelTime("_linear_residual_kernel", 24, 10.0),
        KernelTime("nvjet_hsh_64x8", 1, 25.0),
        KernelTime("void at::native::layer_norm(float*)", 1, 7.0),
        KernelTime("Memcpy DtoH (Device -> Pinned)", 1, 3.0),
    ),
    context_len=9,
)
BANDWIDTH = 2e12


@pytest.mark.slow
def test_the_floors_are_the_limit_of_the_step():
    floors = lesson_11.step_floors(STEP, BANDWIDTH)
    limit = decode_limit(load_model("random:gpt2").network.half(), [9, 9], BANDWIDTH)
    assert sum(floors.values()) == pytest.approx(1e6 * limit.seconds)
    assert floors[ATTENTION] == pytest.approx(1e6 * limit.kv_bytes / BANDWIDTH)


def test_the_gap_is_shared_out():
    table = lesson_11.gap_table(STEP, BANDWIDTH)
    assert sum(table["% of the gap"].astype(float)) == pytest.approx(100, abs=2)
    assert table.loc[IDLE, "at the limit"] == 0


def test_what_one_kernel_takes():
    table = lesson_11.kernels_table(STEP, BANDWIDTH)
    assert list(table["kernels a step"]) == [12, 48, 1]
    assert table.loc[HEAD, "us each"] == 25.0


def test_the_parts_are_drawn_over_their_floors():
    both = part_us(STEP), lesson_11.step_floors(STEP, BANDWIDTH)
    fig = show.draw_step_parts({"B = 2": both})
    (axes,) = fig.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["B = 2, measured", "B = 2, at the limit"]
    assert axes.texts[0].get_text().strip() == "100 µs"


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
    engine_cards = {"05": CostCard(1, {}, HostCounts(1, 2, 3, 4, 5), None)}
    table = lesson_11.live_table(engine_cards)
    assert table.loc["05"].to_dict() == {
        "calls into the manager": 1,
        "records created": 2,
        "index tensors": 4,
        "operators": 3,
    }
