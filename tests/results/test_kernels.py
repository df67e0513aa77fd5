"""What kernels are for, told by their names; the names are those of recorded steps."""

import pytest
from made_records import SEPARATE_KERNELS, record_of, traced

from labkit.errors import RecordError
from labkit.results import AppendTime, AttentionTime, ProfiledStep, StepProfile
from labkit.results.kernels import (
    ATTENTION,
    GROUP_OF,
    HEAD,
    IDLE,
    LAYERS,
    PRODUCTS,
    REST,
    TunedTile,
    group_counts,
    group_us,
    part_counts,
    part_us,
    qualified_name,
    slowest_single,
)
from labkit.results.profiles import KernelTime, Span, durations


def step_of(**counts_and_us: tuple[int, float]):
    kernels = tuple(KernelTime(name, count, us) for name, (count, us) in counts_and_us.items())
    return traced("10", 64, 400.0, sum(kernel.us for kernel in kernels), kernels)


SEPARATE = step_of(**SEPARATE_KERNELS)
FUSED = step_of(
    **{
        "_split_paged_attn_append_kernel": (12, 20.0),
        "_norm_linear_kernel": (24, 30.0),
        "_linear_residual_kernel": (24, 10.0),
        "nvjet_hsh_64x8": (1, 25.0),
        "void at::native::layer_norm(float*)": (1, 7.0),
        "Memcpy DtoH (Device -> Pinned)": (1, 3.0),
    }
)


def test_kernels_are_grouped_by_what_they_are_for():
    assert (
        tuple(group_us(SEPARATE)) == tuple(group_counts(SEPARATE)) == tuple(dict.fromkeys(GROUP_OF.values()))
    )
    assert list(group_counts(SEPARATE).values()) == [37, 12, 12, 25, 36, 1]
    assert list(group_us(SEPARATE).values()) == [130, 24, 60, 50, 60, 9]
    assert group_counts(FUSED)[PRODUCTS] == 49 and group_us(FUSED)[PRODUCTS] == 65
    assert sum(group_counts(FUSED).values()) == FUSED.num_kernels  # a copy takes time, and is none


def test_the_slowest_kernel_that_runs_once():
    assert slowest_single(SEPARATE) == KernelTime("void cutlass::Kernel2<cutlass_80_tensorop>", 1, 30.0)


def test_a_step_s_parts_are_the_whole_step():
    assert part_us(FUSED) == {ATTENTION: 20, LAYERS: 40, HEAD: 25, REST: 10, IDLE: 305}
    assert sum(part_us(FUSED).values()) == FUSED.step_us
    assert part_counts(FUSED) == {ATTENTION: 12, LAYERS: 48, HEAD: 1, REST: 2}


@pytest.mark.parametrize(
    ("kernel", "qualified"),
    [
        ("void at::(anonymous namespace)::norm<c10::Half>(int, float)", "at::anonymous::norm"),
        ("_embed_slots_kernel", "_embed_slots_kernel"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
    ],
)
def test_kernels_have_qualified_names(kernel, qualified):
    assert qualified_name(kernel) == qualified


# --- samples -----------------------------------------------------------------------------------------


def test_kernels_are_timed_by_their_medians():
    append = AppendTime("generic", 8, (2e-6, 9e-6, 3e-6), (9e-6, 1e-6, 8e-6), 3000)
    assert (append.device_us, append.host_us, append.rate) == pytest.approx((3, 8, 1e9))
    attention = AttentionTime("split", 8, 900, 11, (2e-6, 9e-6, 3e-6), 3000)
    assert (attention.us, attention.rate) == pytest.approx((3, 1e9))
    tile = TunedTile("MLP up", 1, 1, 64, (64,) * 6, (6e-6, 9e-6, 7e-6), (32,) * 6, (4e-6,), 50)
    assert tile.gain == pytest.approx(1.75)


def test_a_step_is_busy_or_idle_and_has_the_medians_of_its_traces():
    kernels = (KernelTime("product", 36, 60.0), KernelTime("Memcpy DtoH (Device -> Pinned)", 1, 3.0))
    step = traced("10", 64, 200.0, 150.0, kernels)
    assert (step.idle_share, step.num_kernels) == (0.25, 36)  # a copy is no kernel
    record = record_of("decode_kernels", [step, traced("10", 64, 202.0, 160.0), traced("09", 8, 9.0, 8.0)])
    assert record.step("10", 64) == traced("10", 64, 201.0, 155.0, kernels)
    assert record.gpu_busy_us("10") == {64: 155}
    for ask in (lambda: record.step("10", 3), lambda: record.gpu_busy_us("06")):
        with pytest.raises(RecordError, match="the record has no"):
            ask()


def test_ranges_of_a_profile_are_added_up_and_operators_counted():
    ranges = (Span("forward", 1.0, 2.0), Span("append", 4.0, 1.0), Span("forward", 6.0, 2.0))
    profile = StepProfile(
        3, 8.0, ranges, (Span("add", 1.5, 0.1), Span("add", 5.5, 0.1)), (Span("k", 1.5, 0.8),)
    )
    assert profile.gpu_busy == pytest.approx(0.1)
    assert durations(profile.ranges) == {"forward": 4.0, "append": 1.0}
    assert profile.table()["operators"].to_dict() == {"forward": 1, "append": 0, "(rest of the step)": 1}
    steps = [ProfiledStep("00", b, (0.2, 0.1, 0.4), {}, 0.01, profile) for b in (1, 64, 8)]
    assert record_of("profile", steps).largest is steps[1] and steps[1].median_seconds == 0.2
