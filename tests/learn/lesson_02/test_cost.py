"""Lesson 02's counts of a step's work, and where two lines of host times meet."""

import pytest
from helpers import make_engine

from labkit import LADDER, watch
from labkit.kvcache import AppendBatched
from labkit.learn.lesson_02.cost import calls_by_name, crossover, step_work
from labkit.results import HostTime

# Of two layers and 8 requests; 11 calls are not the append's.
WORK = {
    "01": "8 requests with room: 16 writes, 27 calls; all at a boundary: 16 writes, 27 calls",
    "02": "8 requests with room: 2 writes, 13 calls; all at a boundary: 2 writes, 13 calls",
}


def engine_of_8(options, **settings):
    return make_engine(options=options, max_batch_size=8, block_size=16, prefix_cache=False, **settings)


@pytest.mark.parametrize("rung", WORK)
def test_the_work_of_a_step_with_room_and_of_one_at_a_boundary(rung):
    assert step_work(engine_of_8(LADDER[rung].options)) == WORK[rung]


def test_only_a_boundary_is_dear_on_the_fast_path():
    halfway = LADDER["02"].options.__class__(
        **{**vars(LADDER["02"].options), "kv_append": "batched_fast_path"}
    )
    assert step_work(engine_of_8(halfway)) == (
        "8 requests with room: 2 writes, 13 calls; all at a boundary: 16 writes, 13 calls"
    )


def test_a_part_that_raises_is_not_counted():
    class Broken(AppendBatched):
        def append_layer(self, *arguments):
            raise ZeroDivisionError("none")

    assert step_work(engine_of_8(LADDER["02"].options, parts={"kv_append": Broken})) == (
        "work: not counted, because the engine raised ZeroDivisionError: none, at "
        '`raise ZeroDivisionError("none")`'
    )


def test_calls_are_told_by_name():
    engine = engine_of_8(LADDER["02"].options)
    with watch.steady_decode(engine, watch.steady_prompts(8, lengths=(3,))):
        assert calls_by_name(engine) == {
            "append_takes_block": 8,
            "append_token_batch": 2,
            "layer_offset": 2,
            "num_free_blocks": 1,
        }


# --- the crossover --------------------------------------------------------------------------------------


def host_times(*steps_us):
    return [HostTime(size, 12, (1e-6 * us,) * 3, (0.0,) * 3, (0.0,) * 3) for size, us in steps_us]


@pytest.mark.parametrize(
    ("after", "meets"),
    [
        (host_times((1, 300), (9, 300), (17, 300)), 5.0),  # 100 + 50 (B - 1), 300 from the start
        (host_times((17, 300), (9, 300), (1, 300)), 5.0),
        (host_times((1, 100), (9, 100), (17, 100)), None),  # never dearer
        (host_times((1, 200), (9, 600), (17, 2000)), None),  # always dearer
    ],
    ids=["meets", "in any order", "cheaper from the start", "dearer to the end"],
)
def test_crossover_is_where_the_lines_meet(after, meets):
    before = host_times((1, 100), (9, 500), (17, 900))
    assert crossover(before, after) == (meets if meets is None else pytest.approx(meets))
