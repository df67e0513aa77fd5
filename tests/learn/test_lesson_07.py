"""Lesson 07: what it counts, what it lets fail, and what it reads from records."""

import pytest
import torch
from helpers import GREEDY, make_engine, run, tokens_by_request
from made_records import card_of, card_record, run_of, runs_record

from labkit import LADDER
from labkit.kernels import paged_attention_append_plain, paged_attention_append_triton, triton_status
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager
from labkit.learn import lesson_07
from labkit.learn.lesson_07 import COUNTS, HALFWAY, STEPS
from labkit.results import CostCard, DeviceCounts, HostCounts, HostTime

CPU = torch.device("cpu")
BELOW, THIS = LADDER["06"].options, LADDER["07"].options
ENGINES = {"rung 06": BELOW, "halfway": HALFWAY, "rung 07": THIS}
LAYERS = 3


@pytest.fixture(scope="module")
def model():
    return lesson_07.small_gpt2(n_layer=LAYERS)


# --- what is counted ---------------------------------------------------------------------------------


def test_the_books_of_a_step_are_as_many_times_less_as_there_are_layers(model):
    work = lesson_07.step_work(model, ENGINES, CPU)
    assert (work["halfway"] == work["rung 07"]).all()
    join, usual, boundary = (work.loc[step] for step in STEPS)
    assert list(join.index) == list(COUNTS)
    assert join["rung 07"][list(COUNTS[:4])].tolist() == [1, 8, 8, 8]  # eight requests
    assert join.loc[COUNTS[4], "times less"] == "1"
    assert list(usual.index) == list(COUNTS[:2])
    assert boundary.loc[COUNTS[5]].tolist() == [8 * LAYERS, 8, 8, f"{LAYERS}"]
    scaled = work.drop([(STEPS[0], COUNTS[4]), (STEPS[0], COUNTS[6]), (STEPS[2], COUNTS[6])])
    assert set(scaled["times less"]) == {f"{LAYERS}"}


def test_the_books_hold_less_and_the_pool_is_the_same(model):
    states = {}
    for name, options in ENGINES.items():
        engine = lesson_07.sharing_engine(model, options, CPU)
        engine.step()
        states[name] = lesson_07.manager_state(engine)
    for what, size in states["rung 07"].items():
        times = 1 if what in ("tokens in the cache", "bytes of the pool") else LAYERS
        assert (states["rung 06"][what], states["halfway"][what]) == (times * size, size)


def test_one_copy_serves_all_layers():
    one_a_layer, one = map(lesson_07.copied_pool, (MutableInfoBlockManager, OneTableBlockManager))
    assert one_a_layer["layers whose copy is right"] == one["layers whose copy is right"] == 12
    assert one_a_layer["calls of reserve_token_batch"] == 12 * one["calls of reserve_token_batch"] == 12
    assert one_a_layer["operators dispatched"] > one["operators dispatched"]


@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_layers_agree_whatever_happens(model, options):
    seen = lesson_07.run_schedule(lesson_07.schedule_engine(model, options, CPU))
    assert seen.steps == 60 and seen.different == 0 and seen.lists
    assert all(seen.events.values())  # a boundary, a copy, a preemption, an end: each was there


@pytest.mark.slow
def test_the_pool_is_used_alike(model):
    uses = [lesson_07.run_schedule(lesson_07.schedule_engine(model, o, CPU)).uses for o in ENGINES.values()]
    assert uses[0] == uses[1] == uses[2]
    use = uses[0][0]  # one request of five tokens, in blocks of four; its prompt's blocks are also cached
    assert (use.tokens, use.empty_slots, use.free_blocks) == (5, 3, 8)
    assert any(u.free_blocks == 0 for u in uses[0])


# --- what fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "forwards"), [("00", 1), ("05", 1), ("06", 0), ("07", 0)])
def test_a_failed_reservation_changes_nothing(model, number, forwards):
    left = lesson_07.fail_to_reserve(model, LADDER[number].options, CPU)
    assert list(left.values()) == ["OutOfBlocksError", forwards, (1, 1), [4]]


@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_a_failed_forward_gives_the_reservation_back(model, options):
    engine, undisturbed = (lesson_07.sharing_engine(model, options, CPU) for _ in range(2))
    seen = lesson_07.fail_the_forward(engine)
    assert seen == {
        "booked when it fails": [7] * 8,
        "counted when it fails": [6] * 8,
        "booked afterwards": [6] * 8,
        "counted afterwards": [6] * 8,
    }
    engine.check_integrity()
    assert tokens_by_request(run(engine)) == tokens_by_request(run(undisturbed))


@pytest.mark.parametrize(("new_tokens", "copies"), [(1, 0), (2, 8), (5, 8)])
@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_one_new_token_copies_nothing(model, options, new_tokens, copies):
    engine = lesson_07.schedule_engine(model, options, CPU, max_blocks=64)
    assert lesson_07.copies_on_write(engine, [1, 2, 3, 4, 5, 6], new_tokens) == copies


# --- who reads what is written -----------------------------------------------------------------------


def test_no_program_touches_what_another_writes(model):
    """In steps of all kinds, requests that share blocks among them."""
    engine = lesson_07.sharing_engine(model, THIS, CPU)
    for _ in range(7):
        rows, lengths = lesson_07.next_step_of(engine)
        engine.check_integrity()  # it was only looked at
        touched = lesson_07.places_touched(rows, lengths, 4)
        assert lesson_07.conflicts(touched) == 0
        assert [len(reads) for reads, _ in touched] == lengths
        engine.step()


@pytest.mark.parametrize(("lengths", "conflicts"), [((6, 6), 2), ((6, 7), 1), ((7, 6), 1)])
def test_a_shared_block_that_is_not_full_is_a_conflict(lengths, conflicts):
    touched = lesson_07.places_touched([[0, 1], [0, 1]], lengths, 4)
    assert lesson_07.conflicts(touched) == conflicts


@pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
def test_the_kernel_s_case_has_a_boundary_an_empty_context_and_a_padded_row():
    device = torch.device("cuda" if triton_status().mode == "native" else "cpu")
    plain, kernel = (lesson_07.attention_case(device) for _ in range(2))
    before = plain["k_cache_layer"].clone()
    out = paged_attention_append_triton(**kernel)
    torch.testing.assert_close(out, paged_attention_append_plain(**plain))
    assert not out.isnan().any()
    assert torch.equal(plain["k_cache_layer"].view(torch.int32), kernel["k_cache_layer"].view(torch.int32))
    stored = before.isnan() & ~kernel["k_cache_layer"].isnan()
    assert {(n, t) for n, _, t, _ in stored.nonzero().tolist()} == {(1, 1), (0, 0), (3, 0)}


@pytest.mark.parametrize(
    ("windows", "expected"),
    [([None] * 3, (12, 12)), ([None, 4], (5, 8)), ([None, 5], (6, 8)), ([None, 0], (4, 8)), ([4, 4], (2, 2))],
)
def test_blocks_of_layers_that_look_back_only_so_far(windows, expected):
    assert lesson_07.blocks_by_window(windows, num_tokens=16, block_size=4) == expected


# --- cards and times ---------------------------------------------------------------------------------


def test_a_card_without_a_gpu_has_dashes_beside_one_that_has_none_missing(model):
    counts = CostCard(1, {}, HostCounts(5, 0, 7, 0, 9), None)
    device = DeviceCounts(30, 1, 8, 0, 1, 1, "recorded")
    both = {"a": CostCard(1, {}, counts.host, device), "b": counts}
    table = lesson_07.cards_table(both)
    assert table.loc["GPU: kernels launched"].tolist() == [30, "–"]
    assert table.loc["aten operators dispatched"].tolist() == [7, 7]


def test_nothing_is_left_to_prepare_before_the_first_layer(model):
    operators = {
        name: lesson_07.begin_operators(lesson_07.schedule_engine(model, o, CPU), [[1, 2, 3]] * 3)
        for name, o in ENGINES.items()
    }
    assert operators["rung 06"] == operators["halfway"] > operators["rung 07"] == 0


def test_recorded_cards_are_gpt2_s_at_differing_positions():
    record = card_record(
        [
            ("07", 8, "random:gpt2", (20, 23), card_of(70)),
            ("06", 8, "random:gpt2", (20, 23), card_of(60)),
            ("06", 8, "random:gpt2", (20, 20), card_of(1)),
            ("06", 8, "data/tiny-gpt2", (20, 23), card_of(1)),
            ("05", 8, "random:gpt2", (20, 23), card_of(1)),
        ]
    )
    table = lesson_07.recorded_cards(record, ("06", "07"), (8,))
    assert list(table.columns) == [("B = 8", "rung 06"), ("B = 8", "rung 07")]
    assert table.loc["GPU: kernels launched"].tolist() == [60, 70]
    assert len(table) == 7


def host_time(batch_size=8, steps=8, step=10e-6, follow=2e-6, reserve=3e-6):
    return HostTime(batch_size, 12, (step,) * steps, (follow,) * steps, (reserve,) * steps)


def test_a_step_s_parts_add_up():
    parts = lesson_07.step_parts(host_time())
    assert parts == pytest.approx({"reserve": 3, "tell the device": 2, "launch and the rest": 5})


def test_host_times_are_measured_in_turn():
    times = lesson_07.host_in_turn({"a": BELOW, "b": THIS}, 2, CPU, rounds=1, num_steps=2)
    compared = lesson_07.compare_host_times(times["a"], times["b"], runs=2)
    assert len(compared.before_samples) == len(compared.after_samples) == 2
    same = lesson_07.compare_host_times(host_time(step=2e-6), host_time(step=1e-6))
    assert same.speedup == pytest.approx(2) and len(same.before_samples) == 8


def test_the_table_of_the_ladder_says_what_the_comparison_says():
    def ran(rung, seconds):
        return rung, run_of(seconds, decoded_tokens=1000, append_paths={"fused": 1})

    sides = [ran("06", 2.0), ran("07", 1.0), ran("07", 1.0), ran("06", 2.0)]
    record = runs_record(sides * 2, limit_seconds=0.1)
    (row,) = lesson_07.ladder_table({"a": record}, "06", "07").to_dict("records")
    assert list(row.values()) == ["500", "1,000", "10.0 %", "×2.000", "[2.000, 2.000]", "faster"]


# --- between the rungs ---------------------------------------------------------------------------------


def test_halfway_is_between_the_rungs():
    assert HALFWAY.layer_tables == THIS.layer_tables and HALFWAY.kv_write == BELOW.kv_write
    outputs = [make_engine(options=o).generate([(1, 2, 3)], GREEDY)[0].token_ids for o in ENGINES.values()]
    assert outputs[0] == outputs[1] == outputs[2]
