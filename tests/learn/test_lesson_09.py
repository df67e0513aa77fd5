"""Lesson 09: what it counts, what it computes in parts, and how it reads its records."""

import itertools
from dataclasses import replace

import pytest
import torch
from helpers import make_engine
from made_records import SEPARATE_KERNELS, record_of, traced
from torch import Tensor

from labkit import LADDER, kernels, show, watch
from labkit.bench import step_limit
from labkit.engine.step.fused import PLAIN, VOCABULARY_MULTIPLE
from labkit.kernels import triton_status
from labkit.learn import lesson_09
from labkit.results import KernelTime, TracedStep
from labkit.results.attention_time import AttentionTime
from labkit.results.kernels import GROUPS
from labkit.watch.operators import tensors_of

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]
SEPARATE, FUSED = LADDER["08"].options, LADDER["09"].options


# --- the kernels of a step ------------------------------------------------------------------------------


def test_logits_of_both_rungs_are_far_closer_than_their_tokens():
    engines = [make_engine(options=options) for options in (SEPARATE, FUSED)]
    assert lesson_09.smallest_logit_gap(engines, PROMPTS) > 100


def test_a_parting_is_where_tokens_first_differ():
    model = lesson_09.small_engine(SEPARATE).model
    (logits,) = model.network.prefill(torch.tensor([[1, 2, 3, 7]]), torch.tensor([4])).last_logits
    best, second = logits.topk(2)[1].tolist()
    found = lesson_09.partings(
        model, [[1, 2, 3], [4]], [[7, best, 5], [1, 2]], [[7, second, 6], [1, 2]], torch.float16
    )
    ((at, gap, spacing),) = found.to_numpy().tolist()
    assert at == 1 and gap == pytest.approx(float(logits[best] - logits[second]))
    as_half = logits[best].half()
    assert spacing == float(as_half.abs().nextafter(torch.tensor(torch.inf).half()) - as_half.abs())


# --- two numbers a row ----------------------------------------------------------------------------------


def test_the_variance_is_lost_only_in_the_well_known_formula():
    errors = lesson_09.variance_errors([0.01, 4096])
    formula, distances, parts = (errors[name] for name in errors)
    assert formula[0.01] < 1e-5 < 0.1 < formula[4096]
    assert max(distances.max(), parts.max()) < 1e-3


def test_folding_is_no_worse_unless_its_sums_are_of_other_weights():
    errors = lesson_09.fold_errors([0.01, 100])
    careless, usual, folded = (errors[name] for name in errors)
    assert (folded < 1.1 * usual).all()
    assert careless[100] > 10 * usual[100]


def test_the_largest_mean_is_seen_before_every_layer_norm():
    engine = lesson_09.small_engine(SEPARATE)
    ids = [1, 2, 3, 4]
    usual = lesson_09.largest_mean(engine.model, ids)
    with torch.no_grad():
        engine.model.network.wte.weight.add_(1000.0)
    assert usual < 10 < lesson_09.largest_mean(engine.model, ids)
    assert not engine.model.network.h[0].ln_1._forward_pre_hooks


# --- many programs, one sum -----------------------------------------------------------------------------


def test_programs_of_the_products():
    table = lesson_09.product_table((1, 64))
    for (name, can_split), (N, K) in zip(
        [(name, "residual" in name) for name in table.index],
        [(2304, 768), (768, 768), (3072, 768), (768, 3072)],
        strict=True,
    ):
        tile = kernels.fused_linear.tile_of(64, N, K, can_split=can_split)
        tiles = -(-64 // tile.block_m) * -(-N // tile.block_n)
        expected = str(tiles) if tile.split_k == 1 else f"{tiles} x {tile.split_k}"
        assert table.loc[name, "B = 64"] == expected


def test_only_sums_added_on_arrival_differ():
    assert lesson_09.sums_of_arrivals(1, 50) == (1, 1)
    assert lesson_09.sums_of_arrivals(2, 50) == (1, 1)  # of two numbers, the sum has no order
    on_arrival, by_last = lesson_09.sums_of_arrivals(6, 500)
    assert on_arrival > 1 == by_last


# --- a softmax in shares --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 100, 3000])
@pytest.mark.parametrize("shares", [1, 3, 40])
def test_partial_softmaxes_merge_into_the_whole(shares, scale):
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(30, generator=generator, dtype=torch.float64)
    values = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    owner = torch.arange(30) % shares
    parts = [lesson_09.partial_softmax(scores[owner == i], values[owner == i]) for i in range(shares)]
    torch.testing.assert_close(
        torch.tensor(lesson_09.merge(parts), dtype=torch.float64), scores.softmax(0) @ values
    )


@pytest.mark.parametrize("by_turns", [True, False])
@pytest.mark.parametrize("splits", [1, 3, 16])
def test_every_token_is_in_one_piece(splits, by_turns):
    for context_len in (0, 1, 32, 33, 1000):
        pieces = lesson_09.pieces_of(context_len, splits, by_turns)
        tokens = [t for first, count, _ in pieces for t in range(first, first + count)]
        assert tokens == list(range(context_len))
        assert all(program < splits for *_, program in pieces)


def test_turns_are_those_of_the_kernel():
    """`range(split * BLOCK_T, context_len, SPLITS * BLOCK_T)` in each program."""
    size = lesson_09.TOKENS_AT_A_TIME
    for splits, context_len in itertools.product((1, 4, 7), (5, 200, 1000)):
        firsts = {(first, program) for first, _, program in lesson_09.pieces_of(context_len, splits, True)}
        expected = {(f, p) for p in range(splits) for f in range(p * size, context_len, splits * size)}
        assert firsts == expected


def test_a_split_table_multiplies():
    table = lesson_09.split_table((1, 64), num_heads=12)
    assert list(table.iloc[0]) == [12, 768]
    assert list(table.iloc[2]) == [a * b for a, b in zip(table.iloc[0], table.iloc[1], strict=True)]


def test_a_run_of_short_contexts_is_hardly_split():
    splits, at_work, share_of_one = lesson_09.split_of_a_run(1, range(1, 65)).values()
    assert splits == kernels.num_splits(1, 12, 1024) > 1
    assert (at_work, share_of_one) == (1.5, 50)  # one piece of 32 tokens, then two


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
def test_attention_in_shares_is_its_twin(splits):
    case = lesson_09.attention_case((0, 3, 40))
    twin, split = lesson_09.attend(case), lesson_09.attend(case, splits)
    torch.testing.assert_close(split.out, twin.out, atol=1e-5, rtol=1e-5)
    assert torch.equal(split.k_cache, twin.k_cache) and torch.equal(split.v_cache, twin.v_cache)
    assert not torch.equal(twin.k_cache, case["k_cache_layer"])  # something was stored, in a copy


def test_without_triton_the_twins_stand_for_the_kernels(monkeypatch):
    monkeypatch.setattr(lesson_09, "triton_status", lambda: replace(triton_status(), mode="off"))
    assert lesson_09.fused_kernels() is PLAIN
    case = lesson_09.attention_case((3,))
    assert torch.equal(lesson_09.attend(case, splits=2).out, lesson_09.attend(case).out)


# --- copies and addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [make_engine, lesson_09.small_engine], ids=["even", "odd vocabulary"])
def test_copied_bytes_are_those_of_a_live_step(engine):
    engine = engine(options=FUSED)
    step, gpt2 = watch.device_step_of(engine), engine.model.network
    own = {p.untyped_storage().data_ptr() for p in gpt2.parameters()}
    held = tensors_of(list(vars(step).values()))
    copies = [t for t in held if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in own]
    assert sum(lesson_09.copied_bytes(engine.model.config, itemsize=4).values()) == sum(
        t.nbytes for t in copies
    )


def test_alignment():
    assert [lesson_09.alignment(2 * 50257, row) for row in range(5)] == [128, 2, 4, 2, 8]
    padded = -(-50257 // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    assert {lesson_09.alignment(2 * padded, row) for row in range(20)} == {128}


# --- records --------------------------------------------------------------------------------------------


def step_of(rung: str, batch_size: int, step_us: float, **counts_and_us: tuple[int, float]) -> TracedStep:
    kernels = tuple(KernelTime(name, count, us) for name, (count, us) in counts_and_us.items())
    return traced(rung, batch_size, step_us, 0.9 * step_us, kernels)


FUSED_KERNELS = {
    "_norm_linear_kernel": (24, 60.0),
    "_linear_residual_kernel": (24, 50.0),
    "_split_paged_attn_append_kernel": (12, 30.0),
    "nvjet_hsh_128x8_TNT": (1, 25.0),
    "_best_of_pieces_kernel": (1.0, 3.0),
    "Memcpy DtoH (Device -> Pinned)": (1.0, 2.0),
}
STEPS = [
    step_of("09", 64, 150.0, **FUSED_KERNELS),
    step_of("08", 64, 400.0, **SEPARATE_KERNELS),
    step_of("08", 1, 300.0, **SEPARATE_KERNELS),
    step_of("05", 1, 900.0, **SEPARATE_KERNELS),
]
RECORD = record_of("decode_kernels", STEPS, bandwidth=3e12)


def test_a_step_of_kernels_as_tables():
    steps = lesson_09.recorded_steps(RECORD)
    assert list(steps) == [(1, "08"), (64, "08"), (64, "09")]
    table = lesson_09.kernel_table(RECORD, 64)
    assert list(table.columns) == ["kernels, 08", "kernels, 09", "us, 08", "us, 09"]
    assert list(table.loc["all"]) == [123, 62, 333, 170]
    whole = lesson_09.step_table(RECORD).loc["B = 64, rung 09"]
    assert (whole["kernels"], whole["GPU busy (us)"]) == (62, 135)
    limit_us = 1e6 * step_limit(64, 100, 3e12).seconds
    assert whole["limit, % of busy"] == round(100 * limit_us / 135, 1)


def test_what_each_part_of_a_step_gained():
    record = record_of("decode_kernels", [step for step in STEPS if step.batch_size == 64])
    table = lesson_09.gain_table(record)["B = 64"]
    assert list(table.index) == [
        *(f"{part}, {rung}" for part in ("layers' products", "output layer") for rung in ("08", "09")),
        *(f"{part}, {rung}" for part in ("attention", "the rest") for rung in ("08", "09")),
        "GPU busy, times less",
    ]
    assert list(table) == ["124", "110", "30", "25", "60", "30", "119", "5", "2.67"]
    assert lesson_09.share_of_small_ones(STEPS[1]) == pytest.approx(143 / 333)


ATTENTION = record_of(
    "attention",
    [
        AttentionTime(kernel, 8, length, 11 if kernel == "split" else 1, (1e-6 * us,), 3_000_000)
        for kernel, length, us in (
            ("one_program", 900, 10.0), ("split", 900, 2.0), ("one_program", 100, 4.0), ("split", 100, 4.0)
        )
    ],
    bandwidth=3e12,
)  # fmt: skip


def test_attention_alone_as_a_table():
    table = lesson_09.attention_table(ATTENTION)
    assert list(table.index) == [(8, 100), (8, 900)]
    assert list(table.loc[8, 900]) == [10.0, 2.0, 11, 5.0, 50]


# --- figures --------------------------------------------------------------------------------------------


def texts(figure) -> str:
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_steps_are_drawn_with_their_limit():
    steps = {f"{step.rung} {step.batch_size}": step for step in STEPS[:3]}
    figure = show.draw_step_kernels(steps, dict.fromkeys(steps, 80.0))
    (axes,) = figure.axes
    assert len(axes.patches) == 3 * len(GROUPS)
    assert [line.get_xdata()[0] for line in axes.lines] == [80.0, 80.0, 80.0]
    assert "123 kernels, 333 µs" in texts(figure) and "62 kernels, 170 µs" in texts(figure)


def test_programs_and_shares_are_drawn():
    figure = show.draw_programs((1, 64), 12, (16, 2), 132)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[12, 768], [192, 1536]]
    ways = {
        name: {"70 tokens": lesson_09.pieces_of(70, 4, by_turns)}
        for name, by_turns in (("turns", True), ("stretches", False))
    }
    figure = show.draw_shares(ways)
    assert "3 at work, at most 32 tokens" in texts(figure)
    assert "1 at work, at most 70 tokens" in texts(figure)


@pytest.mark.slow
def test_attention_times_are_drawn_a_line_a_kernel_and_batch():
    top, bottom = show.draw_attention_times(ATTENTION.samples, ATTENTION.bandwidth).axes
    one, split = top.lines
    assert list(one.get_xdata()) == [100, 900] and list(split.get_ydata()) == pytest.approx([4.0, 2.0])
    assert list(bottom.lines[1].get_ydata()) == pytest.approx([25.0, 50.0])
