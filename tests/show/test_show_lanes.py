"""Figures on a clock, or of rows that are computed together: what lies where, and how long it is."""

import pytest

from labkit import show
from labkit.results.profiles import Span, StepProfile
from labkit.show import JoinStep, Stretch
from labkit.watch import Positions
from labkit.watch.counters import PositionsStep


def spans(boxes):
    return [(box.get_x(), box.get_x() + box.get_width()) for box in boxes]


def test_a_timeline_has_each_range_operator_and_kernel_in_its_lane():
    ranges = (Span("labkit.model.forward", 0, 50), Span("labkit.kv.append_token", 50, 40))
    profile = StepProfile(7, 100.0, ranges, ranges[:1], (Span("kernel", 10, 25),))
    (axes,) = show.draw_timeline(profile).axes
    boxes = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    drawn = [(round(box.x0, 6), round(box.x1, 6), round((box.y0 + box.y1) / 2)) for box in boxes]
    assert drawn == [(0, 0.1, 0), (0, 0.05, 0), (0.05, 0.09, 0), (0, 0.05, 1), (0.01, 0.035, 2)]  # ms


def test_work_of_host_and_gpu_is_in_lanes_up_to_the_end_of_the_clock():
    work = [
        Stretch("host", "launch", 0, 50, "0"),
        Stretch("GPU", "gpu", 50, 350, "0"),
        Stretch("GPU", "gpu", 200, 900, "1"),
    ]
    (axes,) = show.draw_schedules({"a": work}, end=800).axes
    assert spans(axes.patches) == [(0, 800), (0, 50), (0, 800), (50, 350), (200, 800)]
    middles = [box.get_y() + box.get_height() / 2 for box in axes.patches]
    assert middles == pytest.approx([0, 0, 1, 0.84, 1.16])  # two kernels at once: one below the other


def test_a_wait_and_what_comes_behind_it_are_one_kernel():
    states = [("waits", 0.0, 4.0), ("queues for memory", 4.0, 6.0), ("moves bytes", 6.0, 20.0)]
    states.append(("waits", 20.0, 25.0))
    one = [Stretch("main", *state, "attention") for state in states]
    two = [*one, Stretch("side", "moves bytes", 0.0, 10.0, "linear_residual")]
    (axes,) = show.draw_lanes({"two": two}, end=22).axes
    assert spans(axes.patches) == [(0, 22), (0, 4), (4, 6), (6, 20), (20, 22), (0, 22), (0, 10)]
    assert [text.get_position()[0] for text in axes.texts if text.get_text()] == [10, 5]  # attention, linear


def test_launches_are_drawn_to_scale():
    eager, graph = show.draw_launches(100, eager_us=1000.0, graph_us=300.0, gpu_us=250.0).axes
    assert [len(axes.patches) for axes in (eager, graph)] == [2 + 30 + 30, 2 + 1 + 100]  # rows, and boxes
    assert spans(eager.patches)[1:3] == [(0, 8.5), (10, 18.5)]


def test_a_step_is_as_wide_as_its_rows():
    steps = [JoinStep(2, {0: "token"}), JoinStep(30, {0: "waits", 3: "prompt"}), JoinStep(4, {0: "token"})]
    (axes,) = show.draw_joins({"Rung 12": steps}).axes
    assert spans(axes.patches) == [(0, 2), (2, 32), (32, 36), (2, 32)]


def test_prompts_are_padded_to_the_longest_or_packed_without_a_gap():
    padded, packed = show.draw_packing([5, 2, 3], max_tokens=4).axes
    assert sum(box.get_width() for box in padded.patches) == 15
    assert spans(packed.patches) == [(0, 4), (0, 1), (1, 3), (3, 4), (0, 2)]


def test_slots_are_numbers_by_step_and_the_last_row_names_the_write():
    slots = [((s, s), "full_batch") for s in (2, 3)] + [((0, 3), "generic"), ((1,), "generic")]
    run = Positions(4, tuple(PositionsStep(dict(enumerate(each)), path) for each, path in slots))
    (axes,) = show.draw_positions({"one": run}).axes
    assert axes.get_title(loc="left") == "one: equal slots in 3 of 4 steps"
    told = {text.get_position(): text.get_text() for text in axes.texts}
    assert [told.get((step, 0)) for step in (1, 2, 3, 4)] == ["2", "3", "0", "1"]
    assert [told.get((step, 1)) for step in (1, 2, 3, 4)] == ["2", "3", "3", None]
    assert told[1.5, 2] == "full_batch" and told[3.5, 2] == "generic"


def test_shares_of_tokens_are_pieces_by_program():
    ways = {"whole": {"70": [(0, 70, 0)]}, "in two": {"70": [(0, 32, 0), (32, 32, 1), (64, 6, 0)]}}
    _, axes = show.draw_shares(ways).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 32), (32, 32), (64, 6)]
    assert axes.get_yticklabels()[0].get_text() == "70: 2 at work,\nat most 38 tokens each"


def test_records_of_a_block_are_as_long_as_they_are_in_charge():
    (axes,) = show.draw_block_lives({"replaced": tuple(range(2, 10)), "mutable": (1,) * 8}).axes
    assert [(p.get_x(), p.get_width()) for p in axes.patches] == [*((t, 1) for t in range(8)), (0, 8)]


def test_a_layers_kernels_stand_where_those_of_the_row_above_do():
    box = show.KernelBox
    rows = {"apart": [box("norm", 1, 10), box("linear", 1, 30)], "fused": [box("norm_linear", 2, 30)]}
    (axes,) = show.draw_layer_kernels(rows).axes
    assert [(p.get_x(), p.get_width()) for p in axes.patches] == [(0.04, 0.92), (1.04, 0.92), (0.04, 1.92)]


def test_stretches_lie_in_their_lanes_and_the_thinnest_can_be_seen():
    stretches = [Stretch("client", "sends", 0, 10), Stretch("engine", "a step", 20, 100)]
    stretches.append(Stretch("client", "a frame", 100, 100))
    (axes,) = show.draw_request(stretches).axes
    boxes = [
        (box.get_x(), box.get_width(), round(box.get_y() + box.get_height() / 2)) for box in axes.patches
    ]
    thin = pytest.approx(0.3)
    assert boxes == [(0, 100, 0), (0, 10, 0), (100, thin, 0), (0, 100, 1), (20, 80, 1)]  # rows, and boxes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["client", "engine"]
