"""What is sent to the device, step by step."""

import pandas as pd
from figures import texts, tick_labels, title
from prefilled_engines import THIS, prefilled

from labkit import show, watch
from labkit.show.sends import SENT
from labkit.watch import Sends
from labkit.watch.sends import OF_REQUESTS, OF_STEPS


def test_sent_numbers_are_written_in_thousands_from_a_thousand_on():
    steps = [(1, True, 1, 1, 3, 1000), (2, False, 0, 0, 0, 0), (3, False, 0, 1, 1, 999)]
    requests = [(step, 0, 0, 4 + step, "in_place", "nothing") for step in (1, 2, 3)]
    sends = Sends(pd.DataFrame(requests, columns=OF_REQUESTS), pd.DataFrame(steps, columns=OF_STEPS))
    written = texts(show.draw_sends(sends))
    assert {"1.0k", "0", "999"} <= set(written) and "1000" not in written


def test_a_cell_names_the_slot_and_what_was_sent_of_its_request():
    steps = [(1, True, 2, 2, 3, 40), (2, False, 0, 1, 1, 5)]
    requests = [(1, 0, 0, 4, "in_place", "joined"), (2, 0, 0, 5, "copy_on_write", "copy_on_write")]
    requests += [(1, 7, 1, 3, "in_place", "joined"), (2, 7, 1, 4, "in_place", "nothing")]
    sends = Sends(pd.DataFrame(requests, columns=OF_REQUESTS), pd.DataFrame(steps, columns=OF_STEPS))
    figure = show.draw_sends(sends)
    (axes,) = figure.axes
    assert tick_labels(axes.yaxis) == ["slot_mapping", "request 0", "request 7", "numbers sent"]
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {
        **{(1, 0): "", (1, 1): "0", (1, 2): "1", (1, 3): "40"},
        **{(2, 0): "", (2, 1): "0 c", (2, 2): "", (2, 3): "5"},
    }
    assert title(figure) == "What the host sends to the device, step by step"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    kinds = ["nothing", "copy_on_write", "joined"]
    assert legend == [*(SENT[kind][1] for kind in kinds), "slot_mapping", "its last block was copied"]


def test_a_cell_is_drawn_for_each_request_and_step():
    engine = prefilled(THIS, prefix_cache=True)
    sends = watch.record_sends(engine, 3)
    fig = show.draw_sends(sends)
    (axes,) = fig.axes
    assert len(axes.patches) == len(sends.requests) + len(sends.steps)
    texts = [t.get_text() for t in axes.texts]
    assert texts.count("0 c") == 1 and texts.count("0") == 1 and "2 c" in texts
    (legend,) = fig.legends
    words = {t.get_text() for t in legend.get_texts()}
    sent = {SENT[s][1] for s in ("nothing", "boundary", "joined")}
    assert words == sent | {"slot_mapping", "its last block was copied"}
