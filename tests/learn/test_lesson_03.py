"""Lesson 03: what it counts, and its figures."""

from itertools import combinations

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.text import Text

from labkit import LADDER, CacheConfig, InferenceEngine, kernels, show
from labkit.bench import AppendTime
from labkit.kernels.triton_runtime import triton
from labkit.learn import lesson_03, not_attempted
from labkit.show.style import INK
from labkit.watch.positions import Positions, PositionsStep


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


# --- what it counts ------------------------------------------------------------------------------------


def engine_of(model, rung):
    cache = CacheConfig(block_size=4, prefix_cache=False)
    return InferenceEngine(model, LADDER[rung].options, device="cpu", cache=cache)


def test_steps_are_counted_by_path_and_by_whether_the_batch_was_whole():
    alone, together, apart = (
        PositionsStep({0: 3}, "full_batch"),
        PositionsStep({0: 4, 1: 4}, "full_batch"),
        PositionsStep({0: 5, 1: 6}, "generic"),
    )
    counts = lesson_03.steps_by_path(Positions(16, (alone, together, together, apart)), batch_size=2)
    assert counts == {
        "decode steps": 4,
        "full_batch": 3,
        "of them with the whole batch": 2,
        "generic": 1,
    }


def test_the_python_of_a_kernel_can_be_shown():
    shown = show.show_source(lesson_03.python_of(kernels.kv_append._kv_append_full_batch_kernel)).data
    assert "tl.program_id(2)" in shown and shown.startswith("`labkit/kernels/kv_append.py`")
    assert lesson_03.python_of(not_attempted) is not_attempted


@pytest.mark.parametrize("numbers", [12 * 64 * 64, 32 * 16 * 128, 5])
def test_the_first_block_past_int32(numbers):
    block = lesson_03.first_block_past_int32(numbers)
    largest = torch.iinfo(torch.int32).max
    assert (block - 1) * numbers <= largest < block * numbers


def test_one_pointer_for_all_layers_overflows_in_a_smaller_cache():
    a_layer, all_layers = (lesson_03.pool_past_int32(pointers, H=12, D=64) for pointers in (12, 1))
    assert a_layer == {"numbers a block": 49152, "first bad block": 43691, "cache (GB)": 103.1}
    assert all_layers["cache (GB)"] == pytest.approx(103.1 / 12, abs=0.05)


# Launched for every slot of a block: the first is compiled for each of what `compiled_for` says.
@triton.jit
def specialized_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@triton.jit(do_not_specialize=["pos"])
def general_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("kernel", "versions"),
    [(specialized_kernel, len(set(map(lesson_03.compiled_for, range(64))))), (general_kernel, 1)],
    ids=["specialized", "general"],
)
def test_triton_compiles_as_often_as_the_lesson_says(kernel, versions, monkeypatch):
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **about: compiled.append(about))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for pos in range(64):
        kernel[(1,)](out, pos)
        assert out.item() == pos
    assert len(compiled) == versions


# --- figures -------------------------------------------------------------------------------------------


def append_times(path, microseconds, sizes=(1, 32, 2048)):
    return [
        AppendTime(path, size, (1e-6 * us,) * 3, (5e-5,) * 3, num_bytes=6144 * size)
        for size, us in zip(sizes, microseconds, strict=True)
    ]


TIMES = [
    *append_times("indexed", (14, 15, 37))[::-1],
    *append_times("generic", (3, 3, 11)),
    *append_times("full_batch", (1.2, 1.4, 16)),
    *append_times("identity_pos", (1.2, 1.5, 16)),
]
WAYS = {
    "before": {"batch_idx": (0, 1, 2), "block_idx": (7, 3, 5), "pos": (20, 20, 20)},
    "after": {"block_idx": (7, 3, 5), "pos": 20},
}


def all_texts(figure):
    return [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]


def test_append_times_have_a_line_a_path_in_both_panels():
    top, bottom = show.draw_append_times(TIMES, 3e12).axes
    for axes in (top, bottom):
        paths = [line for line in axes.lines if line.get_linestyle() == "-"]
        assert [line.get_label() for line in paths] == ["indexed", "generic", "full_batch", "identity_pos"]
        assert all(list(line.get_xdata()) == [1, 32, 2048] for line in paths)
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(top.lines[0].get_ydata()) == pytest.approx([14, 15, 37])
    assert list(bottom.lines[2].get_ydata()) == pytest.approx([5.12, 140.4, 786.4], rel=1e-3)
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("microseconds", "GB a second")
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["1", "32", "2048"]


def test_append_times_stand_beside_the_copys_rate():
    axes = show.draw_append_times(TIMES, 3e12).axes[1]
    (copy,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(copy.get_ydata()) == [3000, 3000] and same_color(copy.get_color(), INK)
    assert [text.get_text() for text in axes.texts] == ["a large copy: 3,000 GB/s"]
    # 2048 * 6144 bytes in 11 us are 1.14 TB/s
    assert axes.get_title(loc="left") == "What it moves: at best 38 % of a copy's rate (generic, B = 2048)"


def test_append_times_of_some_paths_only():
    figure = show.draw_append_times(TIMES[:3], 3e12)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["indexed"]


def test_write_indices_show_what_is_told_and_what_is_not():
    figure = show.draw_write_indices(WAYS)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [t for t in texts if "index tensor" in t] == ["before: 3 index tensors", "after: 1 index tensor"]
    assert texts.count("20") == 3 + 1 and texts.count("7") == 2 and texts.count("2") == 1
    said = [t for t in texts if t.startswith(("a ", "nothing"))]
    tensor = "a tensor: made, copied, waited for"
    assert said == [tensor] * 3 + [
        "nothing: row b is request b",
        tensor,
        "a number: an argument of the kernel",
    ]


def test_a_batch_too_large_to_draw_is_refused():
    with pytest.raises(ValueError, match="17 requests are too many to draw; the most is 16"):
        show.draw_write_indices({"all": {"block_idx": range(17), "pos": 3}})


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda: show.draw_append_times(TIMES, 3e12),
        lambda: show.draw_write_indices(WAYS),
        lambda: show.draw_write_indices({"sixteen": {"block_idx": range(1000, 1016), "pos": 63}}),
    ],
    ids=["append_times", "write_indices", "many_requests"],
)
def test_nothing_is_cut_off_or_written_over(draw):
    figure = draw()
    figure.canvas.draw()
    unseen = set()
    for axes in figure.axes:
        for i, axis in enumerate((axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            unseen |= {t for t in axis.get_ticklabels() if not low <= t.get_position()[i] <= high}
            unseen |= set(axis.get_ticklabels()) if not axes.axison else set()
    areas = [(t.get_text(), Text.get_window_extent(t)) for t in all_texts(figure) if t not in unseen]
    width, height = figure.canvas.get_width_height()
    for text, area in areas:
        inside = min(area.x0, area.y0) > -1 and area.x1 < width + 1 and area.y1 < height + 1
        assert inside, f"{text!r} leaves the picture"
    for (text, area), (other_text, other) in combinations(areas, 2):
        assert not area.padded(0, -2).overlaps(other), f"{text!r} is written over {other_text!r}"
