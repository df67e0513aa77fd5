"""Sliders: one per argument, begun at its first value, and the figure follows."""

import IPython.display
import ipywidgets
import matplotlib.pyplot as plt
from ipywidgets import VBox

from labkit.show import sliders


def test_a_figure_is_drawn_for_what_the_sliders_say(monkeypatch):
    shown, drawn = [], []
    monkeypatch.setattr(IPython.display, "display", lambda forms, raw: shown.append(forms))
    boxes = []
    monkeypatch.setattr(ipywidgets, "VBox", lambda children: boxes.append(VBox(children)) or boxes[-1])

    def draw(**chosen):
        drawn.append(chosen)
        plt.figure(figsize=(chosen["share"] + 1, 1))

    sliders(draw, block_size=(4, 16, 64), share=range(3))
    assert drawn == [{"block_size": 4, "share": 0}]
    (box,), (forms,) = boxes, shown
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


def test_no_output_widget_is_made_whose_messages_could_stop_a_run(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("an Output widget")

    monkeypatch.setattr(ipywidgets, "Output", refused)
    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: None)
    sliders(lambda step: plt.figure(), step=range(2))
