"""From options to classes, and what cannot be built."""

from dataclasses import fields, replace

import pytest
from helpers import every_engine, make_engine, tokens_alone, tokens_of
from resident_helpers import PROMPTS, gpu_engine
from triton_marks import needs_triton

from labkit import LADDER, EngineOptions, SamplingParams
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.parts import PARTS
from labkit.engine.prefill import PaddedPrefill
from labkit.engine.speculation import ReadVerified
from labkit.engine.step import build
from labkit.engine.step.attention import AttendAndWrite, AttendThenWrite, SharedAttention, SplitAttention
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import TRITON, FusedDeviceStep
from labkit.engine.step.lanes import LanedDeviceStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.slots import DeviceSlots
from labkit.errors import OptionError
from labkit.kernels import (
    fused_linear,
    kv_append_triton_identity_pos,
    linear_residual,
    paged_attention_append_triton,
    paged_attention_plain,
    paged_attention_triton,
    tiles,
)
from labkit.kernels.tiles import Tile
from labkit.kernels.triton_runtime import TritonStatus
from labkit.kvcache import OneTableBlockManager
from labkit.ladder import CUDA_GRAPHS, FUSED_AND_SPLIT, ONE_TABLE
from labkit.options import CHOICES


def test_every_option_has_its_choices_and_every_choice_its_class():
    elsewhere = {
        "kv_write": {"fused": AttendAndWrite},  # with a function
        "layer_tables": {"per_layer": None},  # by block_info
        "launch": {"eager": DeviceStep},
        "latency": {"exposed": None},  # by layer_kernels
        "batching": {"padded": PaddedPrefill},  # which has no part of its own
    }
    # Functions, a type, and a class that stands in for another option's.
    assert set(PARTS) == set(CHOICES) - {"attention", "sampler", "kv_cache_dtype", "speculation"}
    for name, parts in PARTS.items():
        by_choice = {choice: (parts | elsewhere.get(name, {}))[choice] for choice in CHOICES[name]}
        assert len(by_choice) == len(parts) + len(elsewhere.get(name, {}))
        assert len(set(by_choice.values())) == len(by_choice)
        assert all(f"`{cls.__name__}`" in EngineOptions.__doc__ for cls in by_choice.values() if cls)
    assert all(field.default in CHOICES[field.name] for field in fields(EngineOptions))


@every_engine
def test_an_engine_is_made_of_the_classes_that_its_options_name(options):
    engine = make_engine(options=options)
    step, manager = engine.decode_step, engine.kv_manager
    if options.layer_tables == "shared":
        assert type(manager) is OneTableBlockManager
    else:
        assert type(manager) is PARTS["block_info"][options.block_info]
    is_drafting = options.speculation == "ngrams"
    assert type(engine.readback) is (ReadVerified if is_drafting else PARTS["readback"][options.readback])
    assert type(engine.prefill) is {"padded": PaddedPrefill, "packed": PackedPrefill}[options.batching]
    if options.batching == "packed":
        assert engine.prefill.make_chunk is PackedChunk
    if options.block_tables == "resident":
        assert type(step) is ResidentDecodeStep and type(step.slots) is DeviceSlots
        attention = AttendAndWrite if options.kv_write == "fused" else AttendThenWrite
        device_step = FusedDeviceStep if options.layer_kernels == "fused" else DeviceStep
        device_step = LanedDeviceStep if options.latency == "hidden" else device_step
        assert type(step.device_step) is device_step and type(step.device_step.attention) is attention
    else:
        assert type(step.block_tables) is PARTS["block_tables"][options.block_tables]
        assert type(step.kv_append) is PARTS["kv_append"][options.kv_append]
        assert type(manager.kv_write) is PARTS["kv_write"][options.kv_write]


@needs_triton
@every_engine
def test_with_triton_attention_every_part_that_has_a_kernel_is_one(options):
    """Its plain twin would make the same tokens."""
    step = make_engine(options=replace(options, attention="triton")).decode_step
    if options.block_tables != "resident":
        assert step.attention is paged_attention_triton
        return
    attention = step.device_step.attention
    if options.kv_write != "fused":
        assert attention.attention is paged_attention_triton
        assert attention.kv_append is kv_append_triton_identity_pos
    elif options.layer_kernels == "fused":
        kernels = step.device_step.kernels  # two of them with the engine's own tiles and workspace
        kernels = kernels._replace(
            norm_linear=kernels.norm_linear.func, linear_residual=kernels.linear_residual.func
        )
        expected = SharedAttention if options.batching == "packed" else SplitAttention
        assert type(attention.attention) is expected and kernels == TRITON
    else:
        assert attention.attention is paged_attention_append_triton


@pytest.mark.parametrize(
    ("device", "mode", "expected"),
    [
        ("cuda", "native", paged_attention_triton),
        ("cuda", "off", paged_attention_plain),
        ("cpu", "native", paged_attention_plain),
        ("cpu", "interpreter", paged_attention_plain),
    ],
)
def test_attention_is_the_kernel_where_it_is_compiled_unless_told_otherwise(
    monkeypatch, device, mode, expected
):
    monkeypatch.setattr(build, "triton_status", lambda: TritonStatus(mode, "a test"))
    monkeypatch.setattr(build, "require_triton", lambda: None)  # whatever this machine has
    assert build.pick_attention("auto", device) is expected
    assert build.pick_attention("plain", device) is paged_attention_plain


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_on_a_gpu_graphs_of_plain_attention_are_refused(tiny):
    with pytest.raises(OptionError, match=r"launch = 'graph' .* needs attention = 'triton'"):
        gpu_engine(tiny, replace(CUDA_GRAPHS, attention="plain"), max_batch_size=4)
    engine = gpu_engine(tiny, replace(ONE_TABLE, attention="plain"), max_batch_size=4)  # these can run
    assert len(engine.generate([[1, 2, 3]], SamplingParams(4, stop_on_eos=False))[0].token_ids) == 4


@pytest.mark.parametrize(
    ("rung", "launch"),
    [("00", "eager"), *((rung, "eager: graphs need a CUDA GPU") for rung in ("08", "09"))],
)
def test_an_engine_says_how_it_launches_and_that_it_has_no_tiles(rung, launch):
    stats = make_engine(options=replace(LADDER[rung].options, attention="plain")).stats()
    assert (stats.launch, stats.tiles) == (launch, "none: the products are PyTorch's")


@pytest.mark.slow
@needs_triton
def test_an_engine_takes_the_measured_tiles_that_are_there_when_it_is_made(monkeypatch):
    """It says so, and its tokens are the same; an engine that was there before goes on as it is."""
    options = replace(FUSED_AND_SPLIT, attention="triton")
    before = make_engine(options=options)
    E = before.model.config.hidden_size
    tile = Tile(32, 32, 32, 1, 4, 2)
    measured = {(3 * E, E): {16: tile}, (E, E): {16: tile._replace(split_k=2)}}
    monkeypatch.setattr(build, "tiles_for", lambda device, dtype, can_hold: measured)
    engine, taken = make_engine(options=options), []

    def spy(*args, choose=tiles.default_tile, **options):
        taken.append(choose(*args, **options))
        return taken[-1]

    for module in (fused_linear, linear_residual):
        monkeypatch.setattr(module, "default_tile", spy)
    expected = [tokens_alone(PROMPTS[0], SamplingParams(2))]
    assert tokens_of(engine.generate(PROMPTS[:1], SamplingParams(2))) == expected
    assert set(measured[3 * E, E].values()) | set(measured[E, E].values()) <= set(taken)
    taken.clear()
    assert tokens_of(before.generate(PROMPTS[:1], SamplingParams(2))) == expected
    assert taken and not {tile, tile._replace(split_k=2)} & set(taken)
    assert engine.stats().tiles == "measured for 2 of 4 products, the others' by rule"
    assert before.stats().tiles == "measured for 0 of 4 products, the others' by rule"
    measured |= dict.fromkeys([(4 * E, E), (E, 4 * E)], measured[E, E])
    assert make_engine(options=options).stats().tiles == "measured for 4 of 4 products"
