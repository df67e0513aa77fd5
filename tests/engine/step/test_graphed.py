"""CUDA graphs: their buckets, what is captured and when, padding, and their tokens on a GPU."""

import gc
import queue
import threading
import weakref
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda, torch_with
from helpers import (
    GREEDY,
    assert_no_block_is_lost,
    make_engine,
    run,
    spoil_keys,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import (
    ALL_RESIDENT,
    EACH_PARAMS,
    PROMPTS,
    TEXTS,
    FromTwoRows,
    gpu_engine,
    pad_to_buckets,
    workload,
)
from triton_marks import needs_interpreter, needs_triton

from labkit import LADDER, CacheConfig, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.sampling import EITHER_WAY, Draws
from labkit.engine.step import graphed
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep, batch_buckets, garbage_collected_before
from labkit.ladder import CUDA_GRAPHS, HIDDEN_LATENCY, ONE_TABLE

IN_HALVES = "11, in halves"
CAN_PAD = [name for name, options in ALL_RESIDENT.items() if options.kv_write == "fused"]

# --- graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch_size", [*range(1, 70), 96, 97, 128, 200, 256, 1000])
def test_buckets_rise_to_the_largest_batch_and_pad_little(max_batch_size):
    buckets = batch_buckets(max_batch_size)
    assert buckets == sorted(set(buckets))
    assert buckets[0] == 1 and buckets[-1] == max_batch_size
    pairs = list(pairwise(buckets))
    assert all(larger <= 2 * smaller for smaller, larger in pairs)
    assert all(2 * larger <= 3 * smaller for smaller, larger in pairs if smaller >= 16)
    assert set(buckets) >= {size for size in (1, 2, 4, 8) if size <= max_batch_size}
    assert len(buckets) <= 4 + 2 * max_batch_size.bit_length()


@pytest.mark.slow
@pytest.mark.parametrize("families", [EITHER_WAY, tuple(Draws)], ids=["two families", "three"])
def test_all_graphs_are_captured_when_the_step_is_made_and_none_in_the_middle_of_serving(
    monkeypatch, families
):
    """Trap 10: one a bucket and family, each after a run that compiles what there is to compile. A step takes
    the next larger one of its family, and its first tokens."""
    cuda, runs = FakeCuda(), []
    monkeypatch.setattr(graphed, "torch", torch_with(cuda))

    def device_step(batch_size, max_context_len, draws):
        runs.append((batch_size, draws, cuda.is_capturing))
        device_step.tell_logits(torch.zeros(batch_size, 3))
        return torch.arange(batch_size) + 100 * batch_size + 10_000 * draws

    device_step.slots = SimpleNamespace(slot_mapping=range(10))
    device_step.families = families
    device_step.tell_logits = None
    step = GraphedStep(device_step)
    captured = [(size, draws) for size, draws, is_capturing in runs if is_capturing]
    assert sorted(captured) == [(size, draws) for size in (1, 2, 4, 8, 10) for draws in sorted(families)]
    for size, draws in captured:
        assert runs.index((size, draws, False)) < runs.index((size, draws, True))
    del runs[:]
    for batch_size in range(1, 11):
        for draws in families:
            bucket = min(size for size in (1, 2, 4, 8, 10) if size >= batch_size)
            replayed, _ = step.graphs[bucket, draws]
            before = replayed.replays
            expected = [i + 100 * bucket + 10_000 * draws for i in range(batch_size)]
            assert step(batch_size, 64, draws).tolist() == expected and replayed.replays == before + 1
    assert sum(graph.replays for graph, _ in step.graphs.values()) == 10 * len(families)
    assert not runs


def test_workspaces_are_cleared_before_captures_and_behind_them_even_where_one_fails(monkeypatch):
    """Or later work would use what lies in the pool of graphs that are gone."""
    cleared = []
    stub = torch_with(FakeCuda(), lambda: cleared.append(gc.isenabled()))
    monkeypatch.setattr(graphed, "torch", stub)
    with pytest.raises(ZeroDivisionError), graphed.cuda_captures(lambda *about: 1 / 0) as capture:
        assert cleared == [True] and not gc.isenabled()
        capture(2, True)
    assert cleared == [True, True] and gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *((name, "plain") for name in [*CAN_PAD, IN_HALVES]),
        *(pytest.param(name, "triton", marks=needs_interpreter) for name in ("08", "11", IN_HALVES, "13")),
    ],
)
def test_padding_a_batch_changes_no_token_and_no_byte_of_anybody(name, attention):
    """Nor is anything read where no token is: NaN lies there. In halves, 5 requests in 7 rows: 4 in the
    first, 1 beside 2 that pad in the second."""
    options = replace(HIDDEN_LATENCY if name == IN_HALVES else ALL_RESIDENT[name], attention=attention)
    parts = {"latency": FromTwoRows} if name == IN_HALVES else {}
    engine = make_engine(options=options, parts=parts, max_batch_size=7, prefix_cache=False)
    manager, slots = engine.kv_manager, engine.decode_step.slots
    for cache in (manager.k_cache, manager.v_cache):
        cache.fill_(torch.nan)
    noted = pad_to_buckets(engine)
    n = 3 if attention == "triton" else 8  # tokens: the interpreter takes its time
    params = [replace(each, max_new_tokens=n - max(0, i - 2)) for i, each in enumerate(EACH_PARAMS)]
    ids = [engine.add_request(*each) for each in zip(PROMPTS, params, strict=True)]
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
        live = manager.live_slots()[:, :, None, :, None]
        for cache in (manager.k_cache, manager.v_cache):
            assert not (cache.isnan() & live).any()
            assert cache[:, manager._num_fresh_used[0] :].isnan().all()  # blocks that nobody was given
        assert slots.context_lens[slots.padding_slot] == -1
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == [tokens_alone(*e) for e in zip(PROMPTS, params, strict=True)]
    assert (5, 7) in noted if attention == "plain" else noted
    assert any(batch < bucket for batch, bucket in noted)


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("num_requests", "max_batch_size"), [(3, 8), (5, 5), (7, 7), (13, 20), (21, 40)])
def test_on_a_gpu_graphs_make_the_tokens_of_the_step_itself(tiny, num_requests, max_batch_size, is_drawn):
    """Batches of every size down to one: most are padded."""
    prompts, params = workload(tiny, num_requests, is_drawn)
    made = {}
    for name, options in ("eager", ONE_TABLE), ("graphs", CUDA_GRAPHS):
        engine = gpu_engine(tiny, options, max_batch_size=max_batch_size)
        made[name] = tokens_of(engine.generate(prompts, params))
        assert_no_block_is_lost(engine)
        device_step = engine.decode_step.device_step
        assert type(device_step) is (GraphedStep if name == "graphs" else DeviceStep)
        assert engine.decode_step.slots.context_lens[max_batch_size] == -1
    assert made["graphs"] == made["eager"]
    assert set(range(1, num_requests + 1)) - set(device_step.buckets)  # some were padded


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_capturing_writes_nothing_to_the_cache(tiny):
    engine = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=8)
    assert not engine.kv_manager.k_cache.any() and not engine.kv_manager.v_cache.any()
    slots = engine.decode_step.slots
    assert slots.context_lens.tolist() == [0] * slots.padding_slot + [-1]
    assert slots.slot_mapping.tolist() == [slots.padding_slot] * 8


@pytest.mark.cuda
def test_on_a_gpu_graphs_keep_their_workspace_when_others_clear_theirs(tiny):
    """torch.compile's graphs clear the libraries' workspaces; ours must not have lain among them."""
    engine = InferenceEngine(
        tiny, CUDA_GRAPHS, device="cuda", cache=CacheConfig(prefix_cache=False), scheduler=SchedulerConfig(64)
    )
    prompts = [[i + 1, 2, 3] for i in range(64)]
    expected = tokens_of(engine.generate(prompts, GREEDY))
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    garbage = [torch.full((2**24,), torch.nan, device="cuda") for _ in range(4)]
    assert tokens_of(engine.generate(prompts, GREEDY)) == expected
    assert all(part.isnan().all() for part in garbage)  # nor did they write there


@pytest.mark.slow
def test_of_two_threads_that_capture_one_waits_and_neither_collects_garbage_inside():
    inside, collects, go_on = queue.SimpleQueue(), [], threading.Event()

    def capture():
        with garbage_collected_before():
            inside.put(threading.current_thread())
            assert go_on.wait(10)
            collects.append(gc.isenabled())

    threads = [threading.Thread(target=capture, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.get(timeout=10)
    with pytest.raises(queue.Empty):
        inside.get(timeout=0.5)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert collects == [False, False] and gc.isenabled()


GRAPHED = [number for number, rung in LADDER.items() if rung.options.launch == "graph"]


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("broken", [0, 2])
@pytest.mark.parametrize("rung", GRAPHED)
def test_on_a_gpu_numbers_that_are_none_in_replayed_steps_end_their_own_request_alone(tiny, rung, broken):
    """Written into its keys between two replays; those who get its blocks later are not harmed."""
    engine = gpu_engine(tiny, LADDER[rung].options, max_batch_size=4, prefill_max_batch_size=4)
    prompts = [tiny.tokenizer.encode(text) for text in TEXTS[:3]]
    params = SamplingParams(24, stop_on_eos=False)
    expected = tokens_of(engine.generate(prompts, params))
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs = [output for _ in range(8) for output in engine.step()]
    spoil_keys(engine, list(engine.scheduler.running.values())[broken], place=0)
    outputs += run(engine)
    completions = {output.request_id: output.completion for output in outputs if output.completion}
    failed = completions.pop(ids[broken])
    assert failed.finish_reason is FinishReason.ERROR
    assert 0 < len(failed.token_ids) < 24
    assert failed.token_ids == expected[broken][: len(failed.token_ids)]
    others = [i for i in range(3) if i != broken]
    assert [completions[ids[i]].token_ids for i in others] == [expected[i] for i in others]
    assert_no_block_is_lost(engine)
    for _ in range(2):
        assert tokens_of(engine.generate(prompts, params)) == expected


@pytest.mark.slow
def test_garbage_is_collected_before_captures_and_not_inside():
    """Whatever the thresholds are, and again afterwards."""

    def cycle():
        """A garbage collection alone finds it."""

    cycle.itself = cycle
    gone = weakref.ref(cycle)
    del cycle
    with garbage_collected_before():
        assert gone() is None and not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage_collected_before():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
