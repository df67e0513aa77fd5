"""Two lanes: the halves of a batch, what each has for itself, and their tokens."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers import assert_no_block_is_lost, make_engine, tokens_of
from resident_helpers import gpu_engine, workload
from torch import Tensor
from triton_marks import needs_interpreter, needs_triton

from labkit.engine.step import build, lanes
from labkit.engine.step.fused import FusedLayer
from labkit.engine.step.graphed import GraphedStep, cuda_captures
from labkit.engine.step.lanes import WIDEST, HalfStep, LanedDeviceStep, PersistentLayers
from labkit.ladder import HIDDEN_LATENCY, OVERLAP

TRITON_OPTIONS = replace(HIDDEN_LATENCY, attention="triton")


def note_rows(step: LanedDeviceStep) -> list[tuple[str, int]]:
    """Which of the halves, or the whole step, begins a batch of how many rows, from now on."""
    noted = []

    def begins(name, embed, slot_mapping, *tables):
        noted.append((name, len(slot_mapping)))
        return embed(slot_mapping, *tables)

    for name, each in zip(("first", "second", "whole"), (*step.halves, step), strict=True):
        each.kernels = each.kernels._replace(embed=partial(begins, name, each.kernels.embed))
    return noted


# --- halves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "rows"),
    [
        (1, [("whole", 1)]),
        (31, [("whole", 31)]),
        (32, [("first", 16), ("second", 16)]),
        (33, [("first", 17), ("second", 16)]),
        (47, [("first", 24), ("second", 23)]),
        (70, [("first", 35), ("second", 35)]),
    ],
)
def test_a_batch_of_32_rows_and_more_goes_through_layers_that_fit_in_halves(monkeypatch, batch_size, rows):
    """Where they gain; on a CPU no half runs beside another."""
    for fits, gain, expected in (
        (True, True, rows),
        (True, False, [("whole", batch_size)]),
        (False, True, [("whole", batch_size)]),
    ):
        monkeypatch.setattr(lanes, "fits_in_l2", lambda layer, device, fits=fits: fits)
        monkeypatch.setattr(build, "halves_gain", lambda device, gain=gain: gain)
        step = make_engine(options=HIDDEN_LATENCY, max_batch_size=70).decode_step.device_step
        noted = note_rows(step)
        with torch.inference_mode():
            assert step(batch_size, 0, True).shape == (batch_size,)
        assert noted == expected


@pytest.mark.parametrize("begins_early", [False, True])
def test_halves_are_for_gpus_on_which_no_kernel_begins_early(monkeypatch, begins_early):
    monkeypatch.setattr(lanes, "early_launch", lambda device: {"EARLY": begins_early})
    assert lanes.halves_gain(torch.device("cuda")) != begins_early
    assert not lanes.halves_gain(torch.device("cpu"))


@pytest.mark.parametrize(
    ("model", "l2_mib", "fits"),
    [
        ((768, 2304), 50, True),
        ((768, 2304), 40, False),
        ((1024, 3072), 60, False),
        ((1024, 3072), 72, True),
        ((1024, 3072), 71, False),
    ],
)
def test_a_layer_fits_where_the_cache_has_room_for_three(monkeypatch, model, l2_mib, fits):
    """Those of GPT-2 in half precision have 12 E² weights: 13.5 MiB, and 24 MiB for medium."""
    E, qkv = model
    shapes = [(qkv, E), (E, E), (4 * E, E), (E, 4 * E)]
    weights = [SimpleNamespace(weight=torch.empty(shape, dtype=torch.float16)) for shape in shapes]
    properties = SimpleNamespace(L2_cache_size=l2_mib * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert lanes.fits_in_l2(FusedLayer(*weights), torch.device("cuda")) == fits
    assert lanes.fits_in_l2(FusedLayer(*weights), torch.device("cpu"))


def test_both_halves_have_the_weights_of_the_step_and_not_a_copy():
    step = make_engine(options=HIDDEN_LATENCY).decode_step.device_step
    assert type(step) is LanedDeviceStep and [type(half) for half in step.halves] == [HalfStep] * 2
    for half in step.halves:
        assert half.layers is step.layers and half.slots is step.slots and half._tables is step._tables
    first, second = step.halves
    assert first.attention is step.attention and second.attention is not step.attention


# --- what a lane has for itself --------------------------------------------------------------------


def workspaces_of(half: HalfStep) -> list[Tensor]:
    split_k = half.kernels.linear_residual.keywords["workspace"]
    return [*split_k, *vars(half.attention.attention._workspace).values()]


@needs_interpreter
def test_no_two_lanes_share_a_workspace():
    """Their launches run at once: each would count the other's parts."""
    step = make_engine(options=TRITON_OPTIONS).decode_step.device_step
    first, second = map(workspaces_of, step.halves)
    assert len(first) == len(second) == 5
    places = [{tensor.untyped_storage().data_ptr() for tensor in each} for each in (first, second)]
    assert len(places[0]) == len(places[1]) == 5 and not places[0] & places[1]
    attentions = [half.attention for half in step.halves]
    assert attentions[0] is not attentions[1]  # each remembers its own rows, between `begin` and the layers


@needs_interpreter
def test_only_hidden_latency_prefetches():
    """And its whole batches alone: beside another half it costs more than it brings. What the rungs below
    measure stays what it is."""
    hidden, exposed = (
        make_engine(options=options).decode_step.device_step
        for options in (TRITON_OPTIONS, replace(OVERLAP, attention="triton"))
    )
    for step, is_asked in ((hidden, True), *((half, False) for half in hidden.halves), (exposed, False)):
        for product in (step.kernels.norm_linear, step.kernels.linear_residual):
            assert product.keywords.get("prefetch", False) is is_asked


@needs_interpreter
def test_weights_of_layers_that_do_not_fit_are_not_asked_for_early(monkeypatch):
    monkeypatch.setattr(lanes, "fits_in_l2", lambda layer, device: False)
    kernels = make_engine(options=TRITON_OPTIONS).decode_step.device_step.kernels
    for product in (kernels.norm_linear, kernels.linear_residual):
        assert not product.keywords.get("prefetch", False)


# --- few rows -----------------------------------------------------------------------------------------


def test_all_layers_in_one_kernel_are_for_narrow_ones_and_the_packages_attention():
    step = make_engine(options=HIDDEN_LATENCY).decode_step.device_step
    assert isinstance(step.few, PersistentLayers)
    first, attention = step.layers[0], step.attention.attention
    step.layers[0] = first._replace(qkv=first.qkv._replace(weight=torch.zeros(3, WIDEST + 1)))
    assert not PersistentLayers.fits(step)
    step.layers[0] = first
    assert PersistentLayers.fits(step)
    step.attention.attention = lambda *arguments: attention(*arguments)
    assert not PersistentLayers.fits(step)


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("num_requests", [33, 44])
def test_on_a_gpu_tokens_are_those_of_exposed_latency(tiny, num_requests, is_drawn, monkeypatch):
    """Batches of every size from there down to one, most of them padded, large ones in halves; then all
    again."""
    monkeypatch.setattr(build, "halves_gain", lambda device: True)
    prompts, params = workload(tiny, num_requests, is_drawn)
    made = {}
    for options in (OVERLAP, HIDDEN_LATENCY):
        engine = gpu_engine(tiny, options, max_batch_size=48)
        made[options] = [tokens_of(engine.generate(prompts, params)) for _ in range(2)]
        assert_no_block_is_lost(engine)
        launched = engine.decode_step.device_step
        assert type(launched) is GraphedStep and engine.decode_step.slots.context_lens[48] == -1
    assert isinstance(launched.device_step, LanedDeviceStep)
    assert made[HIDDEN_LATENCY] == made[OVERLAP]
    assert made[OVERLAP][0] == made[OVERLAP][1]
    for half in launched.device_step.halves:
        split_k, split = half.kernels.linear_residual.keywords["workspace"], half.attention.attention
        assert not split_k.counters.any() and not split._workspace.arrived.any()


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("batch_size", [32, 45, 64])
@pytest.mark.parametrize("in_halves", [False, True], ids=["whole", "halves"])
def test_on_a_gpu_each_replay_has_the_same_bits(tiny, batch_size, in_halves, monkeypatch):
    """Two lanes that disturb each other would not."""
    monkeypatch.setattr(build, "halves_gain", lambda device: in_halves)
    eager = gpu_engine(tiny, replace(HIDDEN_LATENCY, launch="eager"), torch.float16, max_batch_size=64)
    step, slots, manager = eager.decode_step.device_step, eager.decode_step.slots, eager.kv_manager
    generator = torch.Generator("cuda").manual_seed(0)
    for cache in (manager.k_cache, manager.v_cache):
        cache.copy_(torch.randn(cache.shape, generator=generator, device="cuda"))
    M = slots.block_tables.shape[2]
    places = torch.arange(64 * M, device="cuda").view(64, M) % manager.k_cache.shape[1]
    slots.block_tables[:, :64] = places.int()
    kept = {}

    def spy(logits, *others, advance=step.kernels.greedy_advance):
        kept["logits"] = logits
        return advance(logits, *others)

    step.kernels = step.kernels._replace(greedy_advance=spy)
    with cuda_captures(step) as capture:
        graph, _ = capture(batch_size, True)
    lens = torch.randint(1, 8 * M - 1, (64,), generator=generator, device="cuda", dtype=torch.int32)
    slots.slot_mapping[:] = torch.arange(64, device="cuda")
    replays = []
    for _ in range(50):
        slots.context_lens[:64] = lens
        slots.last_token_ids[:64] = torch.arange(64, device="cuda")
        graph.replay()
        replays.append(kept["logits"].clone())
    assert all(torch.equal(replays[0], other) for other in replays)
