"""A figure that the reader changes by sliders."""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import matplotlib.pyplot as plt

WORDS = {"us": "(µs)", "ms": "(ms)", "kb": "(KB)", "gpu": "GPU"}  # how a label writes parts of a name


def sliders(draw: Callable[..., Any], **values: Sequence[Any]) -> None:
    """Show the figure of `draw`, with a slider for each of its arguments.

    values: by the argument's name, what it may be: the slider begins at the first, and has all in ascending
    order. Needs JupyterLab and ipywidgets; where a page is only read, a line of words stands in their place:
    show one figure of `draw` above them.
    """
    from ipywidgets import Image, SelectionSlider, VBox

    labels = {name: " ".join(WORDS.get(word, word) for word in name.split("_")) for name in values}
    width = f"{max(map(len, labels.values()))}ch"  # the same for all, so that their tracks begin alike
    chosen = {
        name: SelectionSlider(
            options=sorted(options),
            value=options[0],
            description=labels[name],
            continuous_update=False,
            style={"description_width": width},
        )
        for name, options in values.items()
    }
    # Not an Output widget, which `interact` draws into: where a notebook is executed by nbclient, the message
    # that such a widget makes it send can hide a reply that it waits for, and then it waits for ever.
    picture = Image(format="png")

    def redraw(_: object = None) -> None:
        draw(**{name: slider.value for name, slider in chosen.items()})
        buffer = BytesIO()
        plt.gcf().savefig(buffer, format="png", bbox_inches="tight")
        plt.close()
        picture.value = buffer.getvalue()

    for slider in chosen.values():
        slider.observe(redraw, names="value")
    redraw()
    box = VBox([*chosen.values(), picture])
    show_widget(box, f"Sliders ({', '.join(values)}): run this cell in JupyterLab to move them.")


def show_widget(widget: Any, words: str) -> None:
    """Show a widget of ipywidgets, and where a page is only read, words in its place."""
    from IPython.display import display

    display(widget._repr_mimebundle_() | {"text/plain": words}, raw=True)
