"""Figures show the engine as it is."""

import matplotlib.pyplot as plt
import pytest

from labkit import CacheConfig, Completion, FinishReason, InferenceEngine, SamplingParams, bench, show, watch
from labkit.engine import Timing
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.paths import ROOT
from labkit.show.blocks import cell_text
from labkit.show.style import DPI, WIDTH


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def engine(tiny):
    """Two requests and a cached prompt that share a full block and a partly filled one."""
    engine = InferenceEngine(tiny, device="cpu", cache=CacheConfig(block_size=4, max_blocks_per_layer=16))
    prompt = [40, 41, 42, 43, 44]
    engine.generate([prompt], SamplingParams(max_new_tokens=1))
    for _ in range(2):
        engine.add_request(prompt, SamplingParams(max_new_tokens=30, stop_on_eos=False))
    engine.step()
    return engine


def shown_texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_block_figure_names_every_block(engine):
    engine.step()
    texts = shown_texts(show.draw_blocks(watch.snapshot(engine)))
    assert {"request 1", "request 2", "prefix 0", "0 · held by 3", "15 · free"} <= set(texts)
    assert texts.count("block 0") == 3


def test_block_figure_fills_a_block_as_far_as_it_is_filled(engine):
    """Three hold each of two blocks, of four tokens and of one."""
    _, pool = show.draw_blocks(watch.snapshot(engine)).axes
    stripes = [patch for patch in pool.patches if patch.get_alpha() == 0.6]
    assert [stripe.get_width() for stripe in stripes] == [4, 4, 4, 1, 1, 1]
    assert [stripe.get_height() for stripe in stripes] == pytest.approx([1 / 3] * 6)


def test_block_figure_says_which_layer_it_shows(engine):
    figure = show.draw_blocks(watch.snapshot(engine, layer_idx=2))
    assert figure.axes[1].get_title(loc="left") == "Physical blocks: where it lies in layer 2's pool"


def test_blocks_too_large_to_draw_are_refused(tiny):
    with pytest.raises(ValueError, match=r"a block of 64 tokens is too large to draw; .* 16 or less"):
        show.draw_blocks(watch.snapshot(InferenceEngine(tiny, device="cpu")))


def test_long_sequences_say_how_many_tokens_are_not_drawn(engine):
    history = watch.record_steps(engine, 20)
    assert len(history) == 21
    texts = shown_texts(show.draw_blocks(history[-1]))
    drawn = [t for t in texts if t.startswith("+")]
    assert drawn == ["+12", "+12"]  # 25 tokens, of which the last 13 are drawn


@pytest.mark.slow
def test_slider_moves_over_all_steps(engine, monkeypatch):
    import ipywidgets

    made = {}
    monkeypatch.setattr(ipywidgets, "interact", lambda show, step: made.update(show=show, slider=step))
    history = watch.record_steps(engine, 3)
    show.blocks_slider(history)
    assert (made["slider"].value, made["slider"].min, made["slider"].max) == (0, 0, 3)
    for step in range(4):
        made["show"](step)
        drawn, expected = plt.gcf(), show.draw_blocks(history[step], f"Step {step} of 3")
        assert shown_texts(drawn) == shown_texts(expected)
        titles = [[axes.get_title(loc="left") for axes in figure.axes] for figure in (drawn, expected)]
        assert titles[0] == titles[1]


@pytest.mark.parametrize(
    ("token", "shown"), [("\n", "↵"), (" a", "·a"), ("thousand", "thou…"), ("ROMEO", "ROMEO")]
)
def test_cells_make_blanks_visible(token, shown):
    assert cell_text(token) == shown


def test_reservation_says_what_is_used():
    texts = shown_texts(show.draw_reservation([30, 70], max_length=100, block_size=64))
    assert texts == ["  50 % used", "  52 % used"]
    texts = shown_texts(show.draw_reservation([64, 128], max_length=256, block_size=64))
    assert texts == ["  38 % used", "  100 % used"]  # full blocks waste nothing


def test_request_rows_have_a_tick_for_each_token(tiny):
    engine = InferenceEngine(tiny, device="cpu")
    done = engine.generate([[5], [6, 7]], SamplingParams(max_new_tokens=5, stop_on_eos=False))
    axes = show.draw_requests(done).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [5, 5]
    assert "milliseconds" in axes.get_xlabel()


def test_request_rows_show_the_wait_the_prefill_and_the_decode(tiny):
    """In milliseconds from the first arrival, which need not be the first row's."""
    moments = [Timing(10.05, 10.1, (10.3, 10.4)), Timing(10.0, 10.0, (10.2, 10.3, 10.5))]
    done = [Completion(i, (1,), (2,), FinishReason.LENGTH, t, tiny.tokenizer) for i, t in enumerate(moments)]
    axes = show.draw_requests(done).axes[0]
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in axes.patches]
    assert bars == [(50, 50), (100, 200), (300, 100), (0, 0), (0, 200), (200, 300)]
    assert [line.get_xdata() for line in axes.lines] == [
        pytest.approx([300, 400]),
        pytest.approx([200, 300, 500]),
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["request 0", "request 1"]


def test_timeline_draws_every_range_operator_and_kernel():
    span = bench.profile.Span
    ranges = (span("labkit.model.forward", 0, 50), span("labkit.kv.append_token", 50, 40))
    profile = bench.StepProfile(7, 100.0, ranges, ranges[:1], (span("kernel", 10, 25),))
    figure = show.draw_timeline(profile)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "GPU kernels\n(busy 25 %)"
    boxes = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    # In milliseconds: the step, its two ranges, in lane 1 an operator and in lane 2 a kernel.
    spans = [(round(box.x0, 6), round(box.x1, 6), round((box.y0 + box.y1) / 2)) for box in boxes]
    assert spans == [(0, 0.1, 0), (0, 0.05, 0), (0.05, 0.09, 0), (0, 0.05, 1), (0.01, 0.035, 2)]
    assert axes.get_title(loc="left") == "One decode step of 7 requests"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["model.forward", "kv.append_token"]


def test_roofline_says_how_much_of_its_roof_a_point_reaches():
    """The roof of one is the memory's slope, and of the other the flat peak; they meet at 25 FLOP a byte."""
    points = [
        show.RooflinePoint("decode", flops=10.0, bytes=10.0, seconds=1.0),
        show.RooflinePoint("prefill", flops=1000.0, bytes=10.0, seconds=2.0),
    ]
    axes = show.draw_roofline(points, bandwidth=40.0, peak=1000.0).axes[0]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["decode: 25 % of its roof", "prefill: 50 % of its roof"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(1, 10 / 1e9), (100, 500 / 1e9)]
    (ridge,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(ridge.get_xdata()) == [25, 25]


def test_limit_figure_says_the_fraction():
    figure = show.draw_limit([8, 16], [0.1, 0.1], [0.4, 0.2], "a device")
    assert shown_texts(figure) == [
        "  20 tokens/s: 25.0 % of the limit",
        "  80 tokens/s: 50.0 % of the limit",
    ]
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([80, 160, 20, 80])


def test_figures_are_as_wide_as_the_house_says():
    figure = show.draw_limit([8], [0.1], [0.4], "a device")
    assert 880 <= figure.get_figwidth() * figure.dpi <= 920
    assert figure.get_figwidth() == WIDTH and figure.dpi == DPI


def test_drawing_leaves_the_readers_own_style_alone():
    before = plt.rcParams["axes.titleweight"]
    show.draw_limit([8], [0.1], [0.4], "a device")
    assert plt.rcParams["axes.titleweight"] == before != "bold"


def test_source_is_the_packages_own():
    shown = show.show_source(RebuiltBlockTables.fill).data
    assert shown.startswith("`labkit/kvcache/block_tables.py`\n```python\ndef fill(")
    assert "torch.tensor(rows, dtype=torch.int32)" in shown
    assert str(ROOT) not in shown


def test_source_of_a_decorated_function_is_its_own():
    shown = show.show_source(show.draw_limit).data
    assert shown.startswith("`labkit/show/roofline.py`\n```python\n@styled\ndef draw_limit(")


def test_a_diff_goes_from_the_first_to_the_second():
    shown = show.show_diff(RebuiltBlockTables.fill, CachedBlockTables.fill).data
    path = "labkit/kvcache/block_tables.py"
    names, *body = shown.splitlines()
    assert names == f"`RebuiltBlockTables.fill` in `{path}` → `CachedBlockTables.fill` in `{path}`"
    assert (body[0], body[-1]) == ("```diff", "```")
    assert "-        rows = []" in body
    assert "+        torch.stack(rows, out=block_tables_cpu[layer_idx])" in body
    assert not [line for line in body if line.startswith(("+++", "@@"))]
