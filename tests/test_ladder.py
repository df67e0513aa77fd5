"""The ladder as data."""

import re
from dataclasses import FrozenInstanceError, asdict, fields, replace
from itertools import pairwise

import pytest
import torch
from helpers import ENGINES, make_engine, small_model

from labkit import LADDER, EngineOptions, InferenceEngine
from labkit.engine.step import build
from labkit.engine.step.attention import AttendAndWrite, AttendThenWrite, SplitAttention
from labkit.engine.step.build import BLOCK_INFO, BLOCK_TABLES, KV_APPEND, KV_WRITE, READBACK
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import TRITON, FusedDeviceStep
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.slots import DeviceSlots
from labkit.errors import OptionError
from labkit.kernels import (
    kv_append_triton_identity_pos,
    paged_attention_append_triton,
    paged_attention_plain,
    paged_attention_triton,
    triton_status,
)
from labkit.kernels.triton_runtime import TritonStatus
from labkit.kvcache import OneTableBlockManager
from labkit.lab import CPU_SCALE, Lab
from labkit.ladder import CAPSTONE, LESSONS
from labkit.options import CHOICES

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)


def test_rungs_are_numbered_from_00_without_a_gap():
    assert list(LADDER) == [f"{i:02}" for i in range(len(LADDER))]
    assert all(LADDER[number].number == number for number in LADDER)


def test_each_rung_has_the_lesson_of_its_number():
    for number, rung in LADDER.items():
        lesson = LESSONS[number]
        assert (lesson.number, lesson.slug, lesson.title) == (number, rung.slug, rung.title)
        assert lesson.rung is rung
    assert LESSONS["00"].notebook == "00_paged_engine.ipynb"
    assert len({lesson.notebook for lesson in LESSONS.values()}) == len(LESSONS)


def test_the_capstone_is_a_lesson_and_no_rung():
    assert list(LESSONS) == [*LADDER, CAPSTONE.number] == [f"{i:02}" for i in range(len(LESSONS))]
    assert CAPSTONE.rung is list(LADDER.values())[-1]
    assert CAPSTONE.notebook == "11_complete_engine.ipynb"


def test_a_lesson_starts_from_the_rung_below_it():
    first, second, *_, last = (Lab(lesson, torch.device("cpu"), CPU_SCALE) for lesson in LESSONS.values())
    assert (second.below, second.rung) == (LADDER["00"], LADDER["01"])
    assert last.below is last.rung is LADDER["10"]  # the capstone adds nothing
    with pytest.raises(OptionError, match="there is no rung '-1'"):
        _ = first.below


def test_each_rung_says_what_it_is():
    assert all(rung.title and rung.write_up and rung.removes for rung in LADDER.values())


def test_an_engine_is_rung_00s_unless_it_is_told_otherwise():
    assert EngineOptions() == LADDER["00"].options
    assert InferenceEngine(small_model(), device="cpu").options == LADDER["00"].options


def test_each_rung_is_the_one_below_with_one_option_changed():
    for below, rung in pairwise(LADDER.values()):
        changed = dict(asdict(rung.options).items() - asdict(below.options).items())
        # With one table for all layers, the place of a token is the same in each, so attention can store it.
        expected = 2 if rung.number == "07" else 1
        assert len(changed) == expected, f"rung {rung.number} changes {changed}"


def test_the_attention_is_the_same_on_every_rung():
    assert {rung.options.attention for rung in LADDER.values()} == {"auto"}


def test_a_rung_can_be_asked_for_politely():
    assert "00" in LADDER and "99" not in LADDER
    assert LADDER.get("99") is None


def test_every_option_has_its_choices_and_every_choice_its_class():
    assert {field.name for field in fields(EngineOptions)} == set(CHOICES)
    classes = {
        "block_tables": BLOCK_TABLES | {"resident": DeviceSlots},
        "kv_append": KV_APPEND,
        "kv_write": KV_WRITE | {"fused": AttendAndWrite},
        "block_info": BLOCK_INFO,
        "layer_tables": {"per_layer": None, "shared": OneTableBlockManager},  # per_layer: by block_info
        "launch": {"eager": DeviceStep, "graph": GraphedStep},
        "layer_kernels": {"separate": None, "fused": FusedDeviceStep},  # separate: PyTorch's
        "readback": READBACK,
    }
    assert set(classes) == set(CHOICES) - {"attention"}  # which is a function
    for name, by_choice in classes.items():
        assert tuple(by_choice) == CHOICES[name]
        assert len(set(by_choice.values())) == len(by_choice)
        assert all(f"`{cls.__name__}`" in EngineOptions.__doc__ for cls in by_choice.values() if cls)
    assert all(field.default in CHOICES[field.name] for field in fields(EngineOptions))


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_an_engine_is_made_of_the_classes_that_its_options_name(options):
    engine = make_engine(options=options)
    step, manager = engine.decode_step, engine.kv_manager
    if options.layer_tables == "shared":
        assert type(manager) is OneTableBlockManager
    else:
        assert type(manager) is BLOCK_INFO[options.block_info]
    assert type(engine.readback) is READBACK[options.readback]
    if options.block_tables == "resident":
        assert type(step) is ResidentDecodeStep and type(step.slots) is DeviceSlots
        attention = AttendAndWrite if options.kv_write == "fused" else AttendThenWrite
        device_step = FusedDeviceStep if options.layer_kernels == "fused" else DeviceStep
        assert type(step.launcher) is device_step and type(step.launcher.attention) is attention
    else:
        assert type(step.block_tables) is BLOCK_TABLES[options.block_tables]
        assert type(step.kv_append) is KV_APPEND[options.kv_append]
        assert type(manager.kv_write) is KV_WRITE[options.kv_write]


@needs_triton
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_with_triton_attention_every_part_that_has_a_kernel_is_one(options):
    """Its plain twin would make the same tokens."""
    step = make_engine(options=replace(options, attention="triton")).decode_step
    if options.block_tables != "resident":
        assert step.attention is paged_attention_triton
        return
    attention = step.launcher.attention
    if options.kv_write != "fused":
        assert attention.attention is paged_attention_triton
        assert attention.kv_append is kv_append_triton_identity_pos
    elif options.layer_kernels == "fused":
        kernels = step.launcher.kernels  # one of them with the engine's own workspace
        kernels = kernels._replace(linear_residual=kernels.linear_residual.func)
        assert isinstance(attention.attention, SplitAttention) and kernels == TRITON
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_tables": "resident"}, "block_tables = 'resident' needs block_info = 'mutable'"),
        (
            {"block_tables": "resident", "block_info": "mutable"},
            "block_tables = 'resident' needs kv_write = 'identity_pos' or 'fused'",
        ),
        ({"layer_tables": "shared"}, "layer_tables = 'shared' needs block_tables = 'resident'"),
        ({"kv_write": "fused"}, "kv_write = 'fused' needs block_tables = 'resident'"),
        ({"launch": "graph"}, "launch = 'graph' needs kv_write = 'fused'"),
        ({"layer_kernels": "fused"}, "layer_kernels = 'fused' needs kv_write = 'fused'"),
        ({"readback": "one_behind"}, "readback = 'one_behind' needs block_tables = 'resident'"),
    ],
)
def test_an_option_says_which_other_it_needs(changes, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        EngineOptions(**changes)


def test_options_cannot_be_changed_under_an_engine():
    with pytest.raises(FrozenInstanceError):
        LADDER["00"].options.block_tables = "rebuilt"
