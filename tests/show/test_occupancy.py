"""A multiprocessor's parts, and how many programs it holds."""

from figures import shown_texts, tick_labels, titles
from matplotlib.colors import same_color

from labkit import show
from labkit.learn.before_03.occupancy import H100, Kernel
from labkit.show.style import GREEN, ORANGE, SKY


def test_a_gpu_and_one_of_its_multiprocessors_are_drawn_by_number():
    figure = show.draw_multiprocessor(H100)
    (axes,) = figure.axes
    blue = [patch for patch in axes.patches if same_color(patch.get_facecolor()[:3], SKY)]
    assert len(blue) == H100.multiprocessors - 1 + 1  # all but the one shown large, and its registers
    assert sum(same_color(patch.get_facecolor()[:3], GREEN) for patch in axes.patches) == H100.warps
    said = " | ".join(shown_texts(figure))
    for words in (
        "132 multiprocessors",
        "L2 cache, 50 MB",
        "memory, 80 GB",
        "65,536 registers (256 KB)",
        "228 KB",
    ):
        assert words in said


def test_the_smallest_limit_is_orange_and_each_wave_is_a_row():
    kernel = Kernel(600, warps=4, registers=128)
    figure = show.draw_occupancy(kernel.room(), kernel.waves(), "600 programs")
    top, bottom = figure.axes
    bars = [(bar.get_width(), bar.get_facecolor()) for bar in top.patches]
    assert [width for width, _ in bars] == [32, 16, 4, 228]
    assert [same_color(shade, ORANGE) for _, shade in bars] == [False, False, True, False]
    assert titles(figure)[0] == "600 programs"
    assert tick_labels(bottom.yaxis) == ["wave 1", "wave 2"]
    (mesh,) = bottom.collections
    assert mesh.get_array().shape == (2, 132)
    assert mesh.get_array()[0].min() == 1 and mesh.get_array()[1].max() == 0.25
    assert [text.get_text() for text in bottom.texts] == ["528", "72"]


def test_many_waves_are_counted_and_not_all_drawn():
    kernel = Kernel(10_000, warps=4, registers=128)
    bottom = show.draw_occupancy(kernel.room(), kernel.waves(), "10,000 programs").axes[1]
    assert len(tick_labels(bottom.yaxis)) == 6 and "13 more waves are not drawn" in bottom.get_xlabel()


def test_nothing_fits_and_nothing_runs():
    kernel = Kernel(10, shared_kb=228)
    top, bottom = show.draw_occupancy(kernel.room(), [], "none").axes
    assert [bar.get_width() for bar in top.patches if same_color(bar.get_facecolor(), ORANGE)] == [0]
    assert not bottom.collections
