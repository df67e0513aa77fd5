"""How much of a step the GPU works."""

import pytest
from figures import texts
from made_records import traced
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import GREEN, INK, RED


def test_an_idle_gpus_steps_say_how_long_they_are_and_how_much_of_them_it_works():
    figure = show.draw_idle([traced("09", 64, 800.0, 600.0), traced("10", 64, 1000.0, 980.0)])
    assert texts(figure) == ["idle 25.0 %", "of 800 µs", "idle 2.0 %", "of 1,000 µs"]
    works = [bar for bar in figure.axes[0].patches if same_color(bar.get_facecolor()[:3], GREEN)]
    assert [bar.get_width() for bar in works] == pytest.approx([75, 98])


def test_rungs_stand_in_a_group_for_each_batch_size():
    steps = [traced(rung, size, 100.0, 50.0) for size in (64, 1) for rung in ("10", "09")]
    axes = show.draw_idle(steps).axes[0]
    rows = {label.get_text(): y for label, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    names = ["B = 1, rung 09", "B = 1, rung 10", "B = 64, rung 09", "B = 64, rung 10"]
    assert sorted(rows, key=rows.get) == names
    assert [rows[name] for name in names] == [0, 1, 2.5, 3.5]
    assert (axes.get_xlabel(), axes.get_xlim()) == ("% of a step", (0, 100))


def test_a_share_of_five_per_cent_or_more_is_red():
    steps = [traced("09", 1, 100.0, busy) for busy in (95.0,)] + [traced("10", 1, 100.0, 96.0)]
    idle = [text for text in show.draw_idle(steps).axes[0].texts if text.get_text().startswith("idle")]
    assert [text.get_color() for text in idle] == [RED, INK]
