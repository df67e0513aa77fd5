"""Figures show the engine as it is."""

import matplotlib.pyplot as plt
import pytest

from labkit import CacheConfig, InferenceEngine, SamplingParams, bench, show
from labkit.kvcache import RebuiltBlockTables
from labkit.model.checkpoint import ROOT
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


def test_snapshot_shows_sharing_and_then_copies(engine):
    shared = show.snapshot(engine)
    assert [s.block_indices for s in shared.sequences] == [(0, 1)] * 3
    assert (shared.blocks[1].length, shared.blocks[1].refcount) == (1, 3)
    engine.step()
    copied = show.snapshot(engine)
    assert [s.block_indices for s in copied.sequences] == [(0, 2), (0, 3), (0, 1)]
    assert [copied.blocks[i].refcount for i in range(4)] == [3, 1, 1, 1]
    assert copied.table()["tokens in last block"].tolist() == [2, 2, 1]


def test_block_figure_names_every_block(engine):
    engine.step()
    texts = shown_texts(show.draw_blocks(show.snapshot(engine)))
    assert {"request 1", "request 2", "prefix 0", "0 · held by 3", "15 · free"} <= set(texts)
    assert texts.count("block 0") == 3


def test_block_figure_says_which_layer_it_shows(engine):
    figure = show.draw_blocks(show.snapshot(engine, layer_idx=2))
    assert figure.axes[1].get_title(loc="left") == "Physical blocks: where it lies in layer 2's pool"


def test_blocks_too_large_to_draw_are_refused(tiny):
    with pytest.raises(ValueError, match=r"a block of 64 tokens is too large to draw; .* 16 or less"):
        show.draw_blocks(show.snapshot(InferenceEngine(tiny, device="cpu")))


def test_long_sequences_say_how_many_tokens_are_not_drawn(engine):
    history = show.record_steps(engine, 20)
    assert len(history) == 21
    texts = shown_texts(show.draw_blocks(history[-1]))
    drawn = [t for t in texts if t.startswith("+")]
    assert drawn == ["+12", "+12"]  # 25 tokens, of which the last 13 are drawn


def test_slider_moves_over_all_steps(engine):
    import ipywidgets

    made = []
    original = ipywidgets.IntSlider.__init__

    def spy(self, *args, **kwargs):
        made.append(kwargs)
        original(self, *args, **kwargs)

    ipywidgets.IntSlider.__init__ = spy
    try:
        show.blocks_slider(show.record_steps(engine, 3))
    finally:
        ipywidgets.IntSlider.__init__ = original
    assert made[0]["min"] == 0 and made[0]["max"] == 3


@pytest.mark.parametrize(
    ("token", "shown"), [("\n", "↵"), (" a", "·a"), ("thousand", "thou…"), ("ROMEO", "ROMEO")]
)
def test_cells_make_blanks_visible(token, shown):
    assert cell_text(token) == shown


def test_reservation_says_what_is_used():
    texts = shown_texts(show.draw_reservation([30, 70], max_length=100, block_size=64))
    assert texts == ["  50 % used", "  52 % used"]


def test_request_rows_have_a_tick_for_each_token(tiny):
    engine = InferenceEngine(tiny, device="cpu")
    done = engine.generate([[5], [6, 7]], SamplingParams(max_new_tokens=5, stop_on_eos=False))
    axes = show.draw_requests(done).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [5, 5]
    assert "milliseconds" in axes.get_xlabel()


def test_timeline_draws_every_range_operator_and_kernel():
    span = bench.profile.Span
    ranges = (span("labkit.model.forward", 0, 50), span("labkit.kv.append_token", 50, 40))
    profile = bench.StepProfile(2, 100.0, ranges, ranges[:1], (span("kernel", 10, 25),))
    figure = show.draw_timeline(profile)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "GPU kernels\n(busy 25 %)"
    assert len(axes.collections) == 1 + 2 + 1 + 1
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["model.forward", "kv.append_token"]


def test_roofline_says_how_much_of_its_roof_a_point_reaches():
    point = show.RooflinePoint("decode", flops=10.0, bytes=10.0, seconds=1.0)
    legend = show.draw_roofline([point], bandwidth=40.0, peak=1000.0).axes[0].get_legend()
    assert [t.get_text() for t in legend.get_texts()] == ["decode: 25 % of its roof"]


def test_limit_figure_says_the_fraction():
    assert shown_texts(show.draw_limit([8], [0.1], [0.4], "a device")) == [
        "  20 tokens/s: 25.0 % of the limit"
    ]


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
