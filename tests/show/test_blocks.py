"""Blocks of a live engine: who holds them, how full they are, what is not drawn."""

import matplotlib.pyplot as plt
import pytest
from figures import shown_texts

from labkit import CacheConfig, InferenceEngine, SamplingParams, show, watch
from labkit.show import blocks
from labkit.show.blocks import cell_text


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
    assert figure.axes[1].get_title(loc="left") == "Physical blocks: layer 2's pool"


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
    made = {}
    monkeypatch.setattr(blocks, "sliders", lambda draw, step: made.update(draw=draw, steps=step))
    history = watch.record_steps(engine, 3)
    show.blocks_slider(history)
    assert made["steps"] == range(4)
    for step in range(4):
        made["draw"](step=step)
        drawn, expected = plt.gcf(), show.draw_blocks(history[step], f"Step {step} of 3")
        assert shown_texts(drawn) == shown_texts(expected)
        titles = [[axes.get_title(loc="left") for axes in figure.axes] for figure in (drawn, expected)]
        assert titles[0] == titles[1]


@pytest.mark.parametrize(
    ("token", "shown"), [("\n", "↵"), (" a", "·a"), ("thousand", "thous…"), ("JULIET", "JULIET")]
)
def test_cells_make_blanks_visible(token, shown):
    assert cell_text(token) == shown
