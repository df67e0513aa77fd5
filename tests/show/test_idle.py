"""How much of a step the GPU works."""

import pytest
from figures import texts
from matplotlib.colors import same_color

from labkit import show
from labkit.show.idle import StepOnDevice
from labkit.show.style import GREEN


def test_an_idle_gpus_steps_say_how_long_they_are_and_how_much_of_them_it_works():
    figure = show.draw_idle([StepOnDevice("09", 64, 800.0, 600.0), StepOnDevice("10", 64, 1000.0, 980.0)])
    assert texts(figure) == ["idle 25.0 %", "of 800 µs", "idle 2.0 %", "of 1,000 µs"]
    works = [bar for bar in figure.axes[0].patches if same_color(bar.get_facecolor()[:3], GREEN)]
    assert [bar.get_width() for bar in works] == pytest.approx([75, 98])
