"""How the block of each token was made ready, step by step."""

import pytest
from helpers import make_engine
from matplotlib.colors import same_color

from labkit import LADDER, SamplingParams, show, watch
from labkit.show.paths import READY_COLOURS

PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [7, 8, 9]]


@pytest.fixture
def engine():
    """Rung 02: a cached prompt that two of three requests begin with."""
    engine = make_engine(options=LADDER["02"].options, block_size=4)
    engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=1))
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(max_new_tokens=6, stop_on_eos=False))
    return engine


def test_path_figure_stacks_a_bar_a_step_in_the_colours_of_its_legend(engine):
    steps = watch.record_paths(engine, 6)
    figure = show.draw_paths({"a run": steps, "again": steps[1:3]})
    panels = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["a run", "again"]
    by_path = [[patch.get_height() for patch in bars] for bars in panels[0].containers]
    assert by_path == [[0, 0, 2, 3, 1, 3], [0, 0, 1, 0, 2, 0], [0, 3, 0, 0, 0, 0]]
    tops = [patch.get_y() + patch.get_height() for patch in panels[0].containers[-1]]
    assert tops == [0, 3, 3, 3, 3, 3]
    seen = ["in_place", "boundary", "copy_on_write"]  # no sequence of these began empty
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [READY_COLOURS[p][1] for p in seen]
    for bars, patch in zip(panels[0].containers, figure.legends[0].get_patches(), strict=True):
        assert same_color(bars[0].get_facecolor(), patch.get_facecolor())


def test_path_figure_labels_whole_tokens_and_steps(engine):
    axes = show.draw_paths({"a run": watch.record_paths(engine, 6)}).axes[0]
    axes.figure.canvas.draw()
    for axis in (axes.xaxis, axes.yaxis):
        assert all(float(tick).is_integer() for tick in axis.get_ticklocs())
    assert axes.get_xlabel() == "step" and axes.get_ylabel() == "tokens"
