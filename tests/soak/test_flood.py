"""A small flood: every request ends as it was asked to, waits no longer than it may, and nothing piles up."""

import gc
import random
import tracemalloc

import pytest
from flood import PACK_WINDOW, Flood, draw_wishes, flood_engine

from labkit import LADDER
from labkit.results.files import load_file

pytestmark = pytest.mark.slow

NUM, LONGEST, MOST_NEW, CLIENTS = 200, 60, 20, 80


def flooded(rung: str, policy: str, device="cpu"):
    wishes = draw_wishes(random.Random(5), NUM, LONGEST, MOST_NEW)
    engine = flood_engine(LADDER[rung].options, wishes, policy, device, room_for=12)
    return wishes, Flood(engine, wishes, CLIENTS).run(rung)


@pytest.mark.parametrize(
    ("rung", "policy", "most_passed_over"),
    [
        *[("00", "fifo", 0), ("05", "pack", PACK_WINDOW), ("07", "fifo", 0), ("10", "pack", PACK_WINDOW)],
        *[("13", "pack", PACK_WINDOW), ("14", "fifo", 0), ("16", "pack", PACK_WINDOW)],
    ],
)
def test_in_a_flood_every_request_ends_as_it_was_asked_to(rung, policy, most_passed_over):
    assert_ended_as_asked(*flooded(rung, policy), most_passed_over)


@pytest.mark.cuda
@pytest.mark.parametrize(("policy", "most_passed_over"), [("fifo", 0), ("pack", PACK_WINDOW)])
@pytest.mark.parametrize("rung", ["05", "08", "10", "11", "14", "16"])
def test_on_a_gpu_every_request_of_a_flood_ends_as_it_was_asked_to(rung, policy, most_passed_over):
    assert_ended_as_asked(*flooded(rung, policy, device="cuda"), most_passed_over)


def assert_ended_as_asked(wishes, made, most_passed_over):
    kinds, ended = [wish.kind for wish in wishes], made["ended"]
    assert ended["refused"] == kinds.count("impossible") and sum(ended.values()) == NUM
    assert ended["length"] >= kinds.count("all")  # a client may have read all before it had enough
    assert ended["cancelled"] <= kinds.count("cancel") and ended["left"] <= kinds.count("leave")
    assert made["checked"] == made["equal"] > 3
    # Nobody waits for more than those before them; a later one comes first as often as the policy allows.
    assert made["nearest_to_bound"] <= 1 and made["most_passed_over"] <= most_passed_over
    assert made["peak_waiting"] > 30 and made["longest_wait"] > 30  # it was a flood
    assert made["peak_blocks"] <= made["num_blocks"] and made["preemptions"] > 0


@pytest.mark.parametrize("rung", ["10", "14"])
def test_a_flood_leaves_nothing_behind(rung):
    """What is allocated behind a third flood on the same engine is as much as behind the second."""
    wishes = draw_wishes(random.Random(5), NUM, LONGEST, MOST_NEW)
    engine = flood_engine(LADDER[rung].options, wishes, "fifo", "cpu", room_for=12)
    Flood(engine, wishes, CLIENTS).run(rung)
    behind = []
    tracemalloc.start()
    try:
        for _ in range(2):
            Flood(engine, wishes, CLIENTS).run(rung)
            gc.collect()
            behind.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert behind[1] < behind[0] + 50_000  # bytes; completions that are kept, for one, take 150,000


def test_the_command_serves_all_and_says_how(soak, capsys, tmp_path):
    few = "--num-requests 30 --at-once 20 --longest-prompt 20 --max-new-tokens 5"
    soak(f"flood --device cpu --rungs 07 {few} --json {tmp_path / 'out.json'}")
    printed = capsys.readouterr().out
    assert "rung 07, fifo: 30 requests" in printed and "rung 07, pack: 30 requests" in printed
    samples = load_file(tmp_path / "out.json").samples
    assert [(s["policy"], sum(s["ended"].values())) for s in samples] == [("fifo", 30), ("pack", 30)]
