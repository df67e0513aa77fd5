"""Sliders: one per argument, in order, begun at the first value that is given, and the figure follows."""

import IPython.display
import ipywidgets
import matplotlib.pyplot as plt
import pytest
from ipywidgets import VBox

from labkit.show import sliders


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, each time the forms and the box; an Output widget's messages could stop a run."""
    shown, boxes = [], []
    monkeypatch.setattr(ipywidgets, "VBox", lambda children: boxes.append(VBox(children)) or boxes[-1])
    monkeypatch.setattr(ipywidgets, "Output", None)
    monkeypatch.setattr(IPython.display, "display", lambda forms, raw: shown.append((forms, boxes.pop())))
    return shown


def test_a_figure_is_drawn_for_what_the_sliders_say(shown):
    drawn = []

    def draw(**chosen):
        drawn.append(chosen)
        plt.figure(figsize=(chosen["share"] + 1, 1))

    sliders(draw, block_size=(16, 64, 4), share=range(3))
    assert drawn == [{"block_size": 16, "share": 0}]
    ((forms, box),) = shown
    assert forms["application/vnd.jupyter.widget-view+json"]["model_id"] == box.model_id
    assert forms["text/plain"].startswith("Sliders (block_size, share): run this cell")
    block_size, share, picture = box.children
    assert (block_size.description, share.description) == ("block size", "share")
    first = bytes(picture.value)
    assert first.startswith(b"\x89PNG")
    block_size.value = 64
    assert drawn[-1] == {"block_size": 64, "share": 0} and picture.value == first
    share.value = 2
    assert drawn[-1] == {"block_size": 64, "share": 2} and picture.value != first
    assert plt.get_fignums() == []


def test_sliders_ascend_and_their_tracks_begin_at_one_place(shown):
    sliders(lambda **_: plt.figure(), gpu_us=(5, 1, 20, 10), shared_kb=(0, 16), read_back=(False, True))
    *made, _ = shown[0][1].children
    assert [slider.options for slider in made] == [(1, 5, 10, 20), (0, 16), (False, True)]
    assert [slider.value for slider in made] == [5, 0, False]
    assert [slider.description for slider in made] == ["GPU (µs)", "shared (KB)", "read back"]
    assert {slider.style.description_width for slider in made} == {"11ch"}
