"""Lesson 15's tables of records: rungs and other engines side by side."""

from made_records import card_of, card_record, record_of, run_of, runs_record

from labkit import show
from labkit.learn.lesson_15 import records
from labkit.results.peers import PeerSample


def ladder(**seconds: float):
    """Four runs of each rung that decode 100 tokens in so many seconds, after half a second of prompts."""
    runs = {rung[1:]: run_of(s, s + 0.5, prefill_seconds=0.5) for rung, s in seconds.items()}
    return runs_record([*runs.items()] * 4, limit_seconds=0.25)


def test_what_prompts_take_in_several_workloads():
    table = records.prefill_table({"a": ladder(r01=1.0), "b": ladder(r01=2.0)}, ["01"])
    assert list(table.loc["01"]) == ["33.3 %", "20.0 %"]


def test_what_each_rung_removed_comes_from_the_cards_asked_for():
    record = card_record(
        [
            ("01", 2, "m", (20, 23), card_of(7, index_tensors=1)),
            ("00", 2, "m", (20, 23), card_of(9, index_tensors=1)),
            ("00", 2, "m", (20, 20), card_of(1)),
            ("00", 2, "other", (20, 23), card_of(1)),
        ]
    )
    table = records.removed_table(record, "m", 2, (20, 23))
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
    notes = records.peer_notes(PEERS)
    assert notes["transformers"] == "labkit 10: ×4.00 [4.00, 4.00]" and "labkit 10" not in notes


def test_whose_tokens_a_peer_made():
    table = records.same_tokens_table({"here": PEERS})
    assert table.loc["vllm", "here"] == "3 of 4"


def test_peers_are_drawn_from_the_slowest_to_the_limit():
    fig = show.draw_peers(PEERS.rates, 400, records.peer_notes(PEERS))
    (axes,) = fig.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["labkit 00", "transformers", "vllm", "labkit 10", "the hardware's limit"]
    assert axes.get_xscale() == "log"
    assert "labkit 10: ×2.00 [2.00, 2.00]" in [text.get_text() for text in axes.texts]
