"""Lesson 08: the toy graph and what it finds, the padded step, and what records say."""

import inspect
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from helpers import GREEDY, SEEDED, make_engine, run, small_model, tokens_alone, tokens_by_request
from made_records import record_of, run_of, runs_record, traced

from labkit import LADDER, SamplingParams
from labkit.bench.profile import Span
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import WARMUP_RUNS, batch_buckets
from labkit.learn import lesson_08
from labkit.learn.lesson_08 import (
    LaunchBound,
    LazyGraphs,
    Met,
    PaddedStep,
    ToyGraph,
    ToyGraphedStep,
    capture,
    captured_steps,
    device_step_of,
    obstacles,
)
from labkit.results import StepProfile, amdahl
from labkit.show import draw_captures
from labkit.watch import steady_decode, steady_prompts

BEFORE_06, RESIDENT, BELOW, THIS = (LADDER[n].options for n in ("05", "06", "07", "08"))
PROMPTS = [(1, 2, 3), (4, 5), tuple(range(6, 14))]

# --- the toy graph ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch_size", [3, 6])
def test_an_engine_of_toy_graphs_makes_the_tokens_of_rung_00(max_batch_size):
    engine = make_engine(options=BELOW, max_batch_size=max_batch_size, decode_first=True, prefix_cache=False)
    engine.decode_step.device_step = toy = ToyGraphedStep(device_step_of(engine))
    assert toy.graphs.keys() == {(b, g) for b in batch_buckets(max_batch_size) for g in (True, False)}
    params = [replace((GREEDY, SEEDED)[i % 2], max_new_tokens=4 + i, seed=i) for i in range(6)]
    each = [(PROMPTS[i % 3], params[i]) for i in range(6)]
    ids, outputs = [], []
    for one in each:
        ids.append(engine.add_request(*one))
        outputs += engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == [tokens_alone(*one) for one in each]
    assert all(bucket == min(b for b in toy.buckets if b >= size) for size, bucket in toy.replays)
    assert any(size < bucket for size, bucket in toy.replays) == (max_batch_size == 6)


def test_capturing_changes_nothing_but_the_padding_slot():
    engine = make_engine(options=BELOW, max_batch_size=3)
    slots, manager = engine.decode_step.slots, engine.kv_manager
    before = {k: v.clone() for k, v in vars(slots).items() if isinstance(v, torch.Tensor)}
    pool = manager.k_cache.clone(), manager.v_cache.clone()
    ToyGraphedStep(device_step_of(engine))
    assert torch.equal(manager.k_cache, pool[0]) and torch.equal(manager.v_cache, pool[1])
    for name, was in before.items():
        now = getattr(slots, name)
        others = ... if name == "slot_mapping" else (..., slice(0, slots.padding_slot), slice(None))
        if name not in ("slot_mapping", "block_tables"):
            others = slice(0, slots.padding_slot)
        assert torch.equal(now[others], was[others]), name
    assert slots.context_lens[slots.padding_slot] == -1
    owner = device_step_of(engine).attention
    assert owner.attention.__name__ == "paged_attention_append_plain"  # as before


# --- obstacles -------------------------------------------------------------------------------------------


def captured(function):
    with torch.inference_mode(), ToyGraph() as graph:  # as a step is
        function()
    return graph


def test_each_kind_of_obstacle_is_found_and_nothing_else():
    x, numbers = torch.ones(3), iter(range(100))
    pieces = torch.zeros(100)

    def found(function):
        two = captured(function), captured(function)
        return {k: v for k, v in obstacles(*two)._asdict().items() if v}

    assert found(lambda: (x * 2).sum() + x) == {}
    assert found(lambda: x * next(numbers)) == {"other_numbers": 1}
    assert found(lambda: x + torch.tensor([1.0, 2.0, 3.0])) == {"other_addresses": 1}
    assert found(lambda: pieces.narrow(0, 0, next(numbers)) + 1).keys() == {"other_numbers", "other_shapes"}
    assert found(lambda: x.mul(2) if next(numbers) % 2 else x.add(2)) == {"other_operators": 1}
    assert found(lambda: x.sum().item()) == {"host_reads": 1}
    assert found(lambda: x.tolist())["host_reads"] == 1
    assert found(lambda: x.nonzero()) == {"host_reads": 1}
    assert found(lambda: [x.add(1) for _ in range(next(numbers) % 2 + 1)]) == {"other_operators": 1}


def test_a_constant_is_no_obstacle_and_another_number_dressed_as_a_tensor_is():
    x, numbers = torch.ones(3), iter(range(9))

    def put(number):
        x[0] = number

    assert not any(obstacles(captured(lambda: put(1.0)), captured(lambda: put(1.0))))
    assert obstacles(captured(lambda: put(next(numbers))), captured(lambda: put(next(numbers)))).other_numbers


def test_memory_that_the_graph_makes_may_lie_anywhere():
    x = torch.ones(3)
    first, second = (captured(lambda: (x * 2).view(3, 1) + 1) for _ in range(2))
    assert not any(obstacles(first, second))
    assert lesson_08.made_by(first).keys() != lesson_08.made_by(second).keys()


@pytest.mark.slow
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "drawn"])
@pytest.mark.parametrize("options", [RESIDENT, BELOW, THIS], ids=["06", "07", "08"])
def test_a_device_step_is_one_program_whoever_is_in_the_slots(options, params):
    graphs = []
    for prompts in (PROMPTS, [(9,), (1, 2, 3, 4, 5), (7, 7)]):
        engine = make_engine(options=options, max_batch_size=4)
        for prompt in prompts:
            engine.add_request(prompt, replace(params, max_new_tokens=12))
        engine.step()
        graphs.append(captured_steps(engine, 7))  # blocks of 4: boundaries are crossed
        engine.step()  # and the engine goes on
        assert type(engine.decode_step.device_step) is DeviceStep
    for first, *others in graphs:
        assert [obstacles(first, other) for other in others] == [(0, 0, 0, 0, 0)] * 6
    # Of another engine, only the addresses are others.
    found = obstacles(graphs[0][0], graphs[1][0])
    assert found.other_addresses and not any(found._replace(other_addresses=0))


def test_a_graph_of_nobody_is_that_of_a_padded_batch():
    engine = make_engine(options=BELOW, max_batch_size=4)
    of_nobody, _ = capture(device_step_of(engine), 4, True)
    for prompt in PROMPTS:
        engine.add_request(prompt, GREEDY)
    engine.step()
    for graph in captured_steps(engine, 4, bucket=4):
        assert not any(obstacles(of_nobody, graph))
    assert obstacles(of_nobody, captured_steps(engine, 1)[0]).other_shapes


def test_rung_05_cannot_be_captured_and_says_why():
    engine = make_engine(options=BEFORE_06)
    with steady_decode(engine, steady_prompts(3, (4, 7)), max_new_tokens=16):
        first, *others = captured_steps(engine, 4)
        engine.step()
    found = [obstacles(first, other) for other in others]
    assert all(f.host_reads and (f.other_addresses or f.other_operators) for f in found)
    assert "next_tokens" not in vars(engine.decode_step)
    table = lesson_08.obstacle_table({"rung 05": [first, *others]})
    assert table.loc["launches of a step", "rung 05"] == len(first.launches)
    assert table.loc["other addresses", "rung 05"] == max(f.other_addresses for f in found)


def test_plain_attention_cannot_be_captured_and_as_a_launch_it_can():
    engine = make_engine(options=BELOW, max_batch_size=2)
    step = device_step_of(engine)
    inside, outside = ([capture(step, 2, True, as_launches=k)[0] for _ in range(2)] for k in (False, True))
    assert obstacles(*inside).host_reads == engine.kv_manager.num_layers
    assert not any(obstacles(*outside))


def test_a_padding_row_is_what_rung_06_cannot_have():
    engine = make_engine(options=RESIDENT, max_batch_size=2)
    with pytest.raises((RuntimeError, IndexError), match="-1 is out of bounds"):
        capture(device_step_of(engine), 2, True)


@pytest.mark.parametrize(("options", "is_right"), [(BEFORE_06, False), (RESIDENT, True), (THIS, True)])
def test_replays_alone_are_tokens_where_the_state_is_on_the_device(options, is_right):
    prompt, params = (1, 2, 3), GREEDY
    engine = make_engine(options=options, block_size=16)
    engine.add_request(prompt, params)
    engine.step()
    tokens = [ids[0] for ids in lesson_08.replayed_tokens(engine, 7)]
    expected = list(tokens_alone(prompt, params)[1:])
    assert len(set(expected)) > 1
    assert tokens == (expected if is_right else expected[:1] * 7)


def test_each_line_of_the_walk_is_in_the_source():
    source = [line.strip() for line in inspect.getsource(DeviceStep).splitlines()]
    for line, why, who in lesson_08.WALK:
        assert line in source
        assert why.endswith(".") and who[:2] in LADDER
        assert lesson_08.walk_through().data.count(f"| `{line}` | {why} | {who} |") == 1


def test_the_list_of_launches_says_where_everything_comes_from():
    x = torch.ones(2, 3)
    table = lesson_08.launch_list(captured(lambda: (x * 2).t() + x.t()), first=3)
    assert table.to_dict("list") == {
        "launch": ["mul", "t", "t"],
        "reads what was there": ["[2, 3]", "", "[2, 3]"],
        "reads what was made by launch": ["", "0", ""],
        "makes": ["[2, 3]", "[3, 2]", "[3, 2]"],
    }


# --- padding ---------------------------------------------------------------------------------------------


def test_who_pads_a_step_changes_no_byte():
    found = []
    for num_requests in (2, 5):
        engine = make_engine(options=BELOW, max_batch_size=5, prefill_max_batch_size=1, prefix_cache=False)
        for cache in (engine.kv_manager.k_cache, engine.kv_manager.v_cache):
            cache.fill_(torch.nan)
        engine.decode_step.device_step = PaddedStep(device_step_of(engine), 5)
        for prompt in [*PROMPTS, (3,), (8, 8)][:num_requests]:
            engine.add_request(prompt, GREEDY)
        while engine.scheduler.waiting:
            engine.step()
        for _ in range(5):
            engine.step()
        first = dict(islice(engine.scheduler.running.items(), 2))
        kv = [torch.stack(session.dense_kv()) for session in first.values()]
        live = engine.kv_manager.live_slots()[:, :, None, :, None].expand_as(engine.kv_manager.k_cache)
        assert torch.equal(~engine.kv_manager.k_cache.isnan(), live)
        found.append(([r.output_token_ids[:6] for r in first], [b.view(torch.uint8) for b in kv]))
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_the_padding_of_choices_of_buckets():
    table = lesson_08.padding_table({"two": [2, 4], "every": [1, 2, 3, 4]}, 4)
    assert table.loc["two"].tolist() == [2, 4, pytest.approx(100 * (0.5 + 0 + 0.25 + 0) / 4, abs=0.1), 50, 1]
    assert table.loc["every"].tolist() == [4, 8, 0, 0, 1]
    assert lesson_08.powers_of_two(128) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert lesson_08.powers_of_two(100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert lesson_08.powers_of_two(1) == [1]


def test_the_buckets_of_the_lesson_are_those_of_the_package():
    lesson = [lesson_08.bucket_of(size, batch_buckets(128)) for size in range(1, 129)]
    assert lesson == [min(b for b in batch_buckets(128) if b >= size) for size in range(1, 129)]


# --- the trap --------------------------------------------------------------------------------------------


def test_lazy_graphs_are_captured_by_exact_size_and_dropped_when_the_table_grows():
    class Step:
        def __init__(self):
            self.calls = []
            self.attention = type("A", (), {"kv_manager": type("M", (), {"block_size": 4})})

        def __call__(self, *args):
            self.calls.append(args)
            return "tokens"

    step = Step()
    lazy = LazyGraphs(step)
    steps = [(2, 1, True), (2, 2, True), (3, 3, True), (2, 3, False)]
    steps += [(2, 4, True), (3, 5, True), (4, 5, True)]
    assert [lazy(*each) for each in steps] == ["tokens"] * 7
    assert step.calls == steps
    assert [met.reason for met in lazy.met] == ["size", "", "size", "size", "table", "table", "size"]
    assert [met.columns for met in lazy.met] == [1, 1, 1, 1, 2, 2, 2]
    table = lesson_08.capture_costs(lazy.met, 8)
    assert table["captures while serving"].tolist() == [6, 0]
    assert table["captures before serving"].tolist() == [0, 2 * len(batch_buckets(8))]
    assert table["runs of the step for captures, while serving"].tolist() == [6 * (WARMUP_RUNS + 1), 0]


class OnlyCounts(LazyGraphs):
    """As fast as it can be: the tokens are all 1."""

    def __call__(self, batch_size, max_context_len, is_greedy):
        self.device_step, step = lambda *_: torch.ones(batch_size, dtype=torch.int64), self.device_step
        self.device_step.attention = step.attention
        try:
            return super().__call__(batch_size, max_context_len, is_greedy)
        finally:
            self.device_step = step


def test_requests_that_come_and_go_make_captures_that_a_benchmark_does_not_see(monkeypatch):
    monkeypatch.setattr(lesson_08, "LazyGraphs", OnlyCounts)
    model, cpu = small_model(), torch.device("cpu")
    monkeypatch.setattr(
        lesson_08, "SamplingParams", lambda max_new_tokens, **kw: SamplingParams(max_new_tokens // 2, **kw)
    )
    met = lesson_08.lazy_captures(model, BELOW, cpu, num_steps=80)
    again = lesson_08.lazy_captures(model, BELOW, cpu, num_steps=80)
    assert met == again
    counts = Counter(step.reason for step in met)
    assert counts["size"] >= 3 and counts["table"] >= 1 and counts[""] > counts["size"]
    warm_up, measured = lesson_08.lazy_benchmark(model, BELOW, cpu)
    assert warm_up >= 2 and measured == 0


def test_captures_are_marked_where_they_happen():
    met = [Met(1, 1, "size"), Met(2, 1, "size"), Met(2, 2, "table"), Met(2, 2, "")]
    fig = draw_captures(*zip(*met, strict=True))
    (axes,) = fig.axes
    marked = [line for line in axes.lines if line.get_marker() == "o"]
    dots = [(list(line.get_xdata()), list(line.get_ydata())) for line in marked]
    assert dots == [([1, 2], [1, 2]), ([3], [2])]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [2.5]
    assert axes.get_title(loc="left") == "3 of 4 steps wait for a capture"


# --- records ---------------------------------------------------------------------------------------------


def profile_of(batch_size, forward, kernels):
    return StepProfile(
        batch_size,
        duration=1000.0,
        ranges=(Span("labkit.kv.append_token", 0, 100), Span("labkit.model.forward", 100, forward)),
        operators=(),
        kernels=(Span("append", 50, 7), *(Span("k", 100 + i, us) for i, us in enumerate(kernels))),
    )


def test_the_forward_s_launches_and_its_kernels():
    table = lesson_08.forward_table([profile_of(1, 600.0, (10.0, 30.0)), profile_of(8, 620.0, (40.0, 60.0))])
    assert list(table.index) == ["B = 1", "B = 8"]
    assert table.iloc[0].tolist() == [2, 600, 40, 300, 20]
    assert lesson_08.forward_us(profile_of(8, 620.0, (40.0, 60.0))) == (620, 100, 2)


def test_amdahl_s_law():
    assert amdahl(0.5, float("inf")) == 2
    assert amdahl(0.5, 1) == 1
    assert amdahl(1, 3) == pytest.approx(3)
    assert lesson_08.share_replaced(2) == 0.5
    assert amdahl(lesson_08.share_replaced(1.1), float("inf")) == pytest.approx(1.1)


def test_the_slower_worker_is_the_step():
    assert LaunchBound(300, 100).eager_us == 300 and LaunchBound(300, 100).gain == 3
    assert LaunchBound(100, 300).eager_us == 300 and LaunchBound(100, 300).gain == 1


def ladder(**step_us):
    """A record whose steps take so many microseconds, by rung."""
    runs = {rung[1:]: run_of(10e-6 * us, decode_steps=10) for rung, us in step_us.items()}
    return runs_record([*runs.items()] * 4)


def test_launches_times_microseconds_against_the_record():
    records = {64: ladder(r07=2200.0, r08=1000.0), 1: ladder(r07=1000.0, r08=500.0)}
    table = lesson_08.launch_model(records, {1: 100, 64: 200})
    assert table["B = 1"].tolist() == [100, 1000, 1000, "100%", 500, "×2.00", "×2.00"]
    assert table["B = 64"].tolist() == [200, 2000, 2200, "91%", 1000, "×2.00", "×2.20"]


def test_the_gain_is_gone_where_the_gpu_takes_longer_than_the_launches():
    samples = [
        traced(rung, b, 1000.0, 100.0 + us * b, context_len=10)
        for b in (1, 2, 4)
        for rung, us in (("07", 99), ("08", 50))
    ]
    record = record_of("decode_kernels", samples, bandwidth=1e9)  # a token of 1000 bytes takes 1 us
    table = lesson_08.gain_by_context(record, 600.0, 1000, (2, 4, 20), (10, 110))
    assert table.loc[10].tolist() == ["×3.00", "×2.00", "×1.00"]
    assert table.loc[110].tolist() == ["×1.50", "×1.00", "×1.00"]
