"""Steps of an engine, counted by hand beside the count."""

import pytest

from labkit import LADDER, InferenceEngine, SchedulerConfig
from labkit.learn.lesson_13 import served
from labkit.show import JoinStep

RUNNING = [([1, 2, 3], 9)] * 2
JOINING = {4: [([7] * 100, 2), ([5] * 20, 2)]}


@pytest.fixture(scope="module")
def model():
    return served.quick_model()


def run(model, rung, later=None, chunk=32):
    scheduler = SchedulerConfig(prefill_chunk_tokens=chunk)
    options = {"device": "cpu", "cache": served.NO_PREFIXES, "scheduler": scheduler}
    return served.serve(InferenceEngine(model, LADDER[rung].options, **options), RUNNING, later)


def test_below_a_join_is_one_padded_step_in_which_nobody_gets_a_token(model):
    below = run(model, "12", JOINING)
    assert below.prompt_rows == 2 * 3 + 2 * 100 and below.pads == 80
    assert below.num_stalled == 1 and below.num_joins == 2
    (stall,) = [step for step in below.steps if step.is_stalled]
    assert stall.rows == 200 and stall.ran == {0, 1} and stall.prompts == stall.got == {2, 3}
    assert below.longest_wait == 204  # with the decode step behind it


def test_packed_nobody_waits_and_there_is_no_pad(model):
    packed = run(model, "13", JOINING)
    assert packed.prompt_rows == 126 and packed.pads == packed.num_stalled == 0
    chunks = [step.prompt_rows for step in packed.steps if step.prompt_rows]
    assert chunks == [6, 32, 32, 32, 24] and packed.longest_wait == 34
    assert [sorted(step.prompts) for step in packed.steps if step.prompt_rows] == [
        [0, 1],
        [2],
        [2],
        [2],
        [2, 3],
    ]


def test_alike_and_at_once_both_compute_as_much(model):
    asked = served.equal_load(4, 16, 3)
    engines = [InferenceEngine(model, LADDER[n].options, device="cpu") for n in ("12", "13")]
    runs = [served.serve(engine, asked) for engine in engines]
    assert [r.prompt_rows for r in runs] == [64, 64] and not any(r.pads + r.num_stalled for r in runs)


def test_the_table_and_the_picture_have_the_counts(model):
    below = run(model, "12", JOINING)
    table = served.table({"below": below})
    assert table.loc["of these pads", "below"] == 80 and len(table) == 6
    steps = served.join_steps(below, first=4)
    assert steps[0] == JoinStep(200, {0: "waits", 1: "waits", 2: "prompt", 3: "prompt"})
    assert steps[1].states[0] == "token"


def test_the_ragged_load_is_the_benchmarks_own(model):
    load = served.ragged_load(model, 40, 10)
    lengths = [len(prompt) for prompt, _ in load]
    assert len(load) == 40 and 1 <= min(lengths) < 60 and 200 < max(lengths) <= 800
    assert all(1 <= new <= 10 for _, new in load)
