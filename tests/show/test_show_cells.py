"""Figures of cells: what is in each, and the colour that says whose it is."""

import pandas as pd
import pytest
from figures import WAYS, texts
from helpers import make_engine
from matplotlib.colors import same_color, to_rgba

from labkit import SamplingParams, show, watch
from labkit.learn.before_03.graders import Access as Touch
from labkit.show.blocks import cell_text
from labkit.show.colours import BLUE, GREY, ORANGE, PALE, RED
from labkit.watch import Flight, Flights, Sends
from labkit.watch.accesses import READ, WRITE, Access, KernelRun, Layout
from labkit.watch.sends import OF_REQUESTS, OF_STEPS


def shades(axes, colours):
    """Whether the filled patches have these colours, in order."""
    faces = [patch.get_facecolor()[:3] for patch in axes.patches if patch.get_fill()]
    return len(faces) == len(colours) and all(map(same_color, faces, colours))


def run_of(*accesses, grid=(2,), shape=(2, 2, 3), strides=(6, 3, 1)):
    layouts = {"new": Layout((2, 3), (9, 1)), "cache": Layout(shape, strides)}
    return KernelRun("append", grid, layouts, [Access(*access) for access in accesses])


def cells(axes):
    """The colour of each part of a cell, by where it begins."""
    return {(p.get_x(), p.get_y()): p.get_facecolor() for p in axes.patches if p.get_fill()}


def test_a_number_has_the_colour_of_its_program_pale_if_it_is_read():
    run = run_of(
        *(((p,), "new", READ, (9 * p, 9 * p + 1, 9 * p + 2)) for p in (0, 1)),
        *(((p,), "cache", WRITE, (9 - 9 * p, 10 - 9 * p, 11 - 9 * p)) for p in (0, 1)),
    )
    new, cache = show.draw_accesses(run).axes
    assert cells(new) == {(x, y): to_rgba((BLUE, ORANGE)[y], 0.35) for x in range(3) for y in range(2)}
    written = {(x + 3, 1): to_rgba(BLUE) for x in range(3)} | {(x, 0): to_rgba(ORANGE) for x in range(3)}
    assert cells(cache) == written


def test_a_number_written_by_two_is_red_and_what_meets_no_element_is_told():
    both = [((p,), name, kind, (0,)) for p in (0, 1) for name, kind in (("new", READ), ("cache", WRITE))]
    new, cache = show.draw_accesses(run_of(*both)).axes
    assert cells(new) == {(0, 0): to_rgba(BLUE, 0.35), (0, 0.5): to_rgba(ORANGE, 0.35)}
    assert cells(cache) == {(0, 0): to_rgba(RED)}
    astray = [((p,), "new", READ, (3 + p, 4 + p)) for p in range(4)]
    (axes,) = show.draw_accesses(run_of(*astray, grid=(4,)), {"new": ("request", "d")}).axes
    (axes,) = show.draw_accesses(run_of(*astray, grid=(4,)), {"new": ("request", "d")}).axes
    assert cells(axes) == {}
    assert axes.get_xlabel() == "d\noutside of it: 8 accesses, the first by program (0,)"


def test_blocks_are_filled_as_far_as_they_are_and_striped_by_their_holders(tiny):
    engine = make_engine(tiny, max_blocks_per_layer=16)
    engine.generate([[40, 41, 42, 43, 44]], SamplingParams(max_new_tokens=1))
    for _ in range(2):
        engine.add_request([40, 41, 42, 43, 44], SamplingParams(max_new_tokens=30, stop_on_eos=False))
    engine.step()
    _, pool = show.draw_blocks(watch.snapshot(engine)).axes  # three hold each block
    stripes = [patch for patch in pool.patches if patch.get_alpha() == 0.6]
    assert [stripe.get_width() for stripe in stripes] == [4, 4, 4, 1, 1, 1]
    assert [stripe.get_height() for stripe in stripes] == pytest.approx([1 / 3] * 6)
    with pytest.raises(ValueError, match="a block of 64 tokens is too large to draw"):
        show.draw_blocks(watch.snapshot(make_engine(tiny, block_size=64)))
    assert [cell_text(token) for token in ("\n", " a", "thousand")] == ["↵", "·a", "thous…"]


def test_a_pool_frames_what_is_in_a_block_that_its_owner_does_not_hold():
    right = show.PoolFrame("end", ((1, 2, 20), (1, 2, 10)), ("B", "A"))
    wrong = show.PoolFrame("end", ((1, 2, 20), (1, 2, 20)), ("B", "A"))
    for frame, framed in ((right, []), (wrong, [(2, 2)])):
        (axes,) = show.draw_pool_frames({"a run": [frame]}, {10: "A", 20: "B"}).axes
        edges = [p for p in axes.patches if same_color(p.get_edgecolor(), RED)]
        assert [(edge.get_x(), round(edge.get_y() + edge.get_height() / 2)) for edge in edges] == framed


def test_a_cell_of_a_tensor_has_the_colours_of_the_programs_that_touch_it():
    touches = [Touch("store", (0,), "x", (0, 1)), Touch("store", (1,), "x", (1, 2))]
    (axes,) = show.draw_places(touches, {"x": (1, 2)}).axes
    assert cells(axes) == {(0, 0): to_rgba(BLUE), (1, 0): to_rgba(RED)}  # two programs write number 1
    assert axes.get_xlabel().endswith("outside of it: 1 accesses, the first by program (1,)")


def test_rows_of_block_tables_have_the_colour_of_their_reason():
    lines = [
        (1, 3, 0, 4, 1, "first"),
        (3, 3, 0, 5, 2, "boundary"),
        (3, 9, 0, 8, 2, "kept"),
        (3, 9, 1, 8, 2, "boundary"),
    ]
    columns = ["step", "request", "layer", "tokens", "blocks", "reason"]
    (axes,) = show.draw_rows(pd.DataFrame(lines, columns=columns)).axes
    assert {t.get_position(): t.get_text() for t in axes.texts} == {(1, 0): "4", (3, 0): "5", (3, 1): "8"}
    assert shades(axes, [GREY, BLUE, PALE])  # first, boundary, kept


def test_sends_name_the_slot_of_what_was_sent_and_count_the_bytes():
    steps = [(1, True, 2, 2, 3, 4000), (2, False, 0, 1, 1, 5)]
    requests = [(1, 0, 0, 4, "in_place", "joined"), (2, 0, 0, 5, "copy_on_write", "copy_on_write")]
    requests += [(1, 7, 1, 3, "in_place", "joined"), (2, 7, 1, 4, "in_place", "nothing")]
    sends = Sends(pd.DataFrame(requests, columns=OF_REQUESTS), pd.DataFrame(steps, columns=OF_STEPS))
    (axes,) = show.draw_sends(sends).axes
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        **{(1, 0): "", (1, 1): "0", (1, 2): "1", (1, 3): "4k"},
        **{(2, 0): "", (2, 1): "0 c", (2, 2): "", (2, 3): "5"},
    }


def test_a_token_that_nobody_gets_is_hollow_and_one_that_ends_a_text_says_so():
    flights = [
        Flight(1, 1, [4, 6], read_in=2, token_ids=[10, 99], handed_to={4, 6}),
        Flight(2, 2, [4, 6], read_in=3, token_ids=[11, 12], handed_to={4}),
    ]
    (axes,) = show.draw_flights(Flights(flights, calls=3), ends=99).axes
    told = [(text.get_text(), text.get_position()) for text in axes.texts if text.get_text()]
    assert told == [("end", (1, 1)), ("×", (2, 1))]
    assert shades(axes, [BLUE, BLUE, ORANGE, PALE])  # row by row


def test_block_tables_have_a_row_per_table_and_a_border_about_what_is_shared():
    tables = {"many": {0: [(4, 2)] * 3}, "one": {0: [(4, 2)], 1: [(4,)]}}
    many, one = show.draw_tables(tables).axes
    assert [t.get_text() for t in many.texts if t.get_text().isdigit()] == ["4", "2"] * 3
    assert [box.get_linewidth() > 0 for box in one.patches] == [True, False, True]


def test_a_full_block_of_texts_that_begin_alike_is_one_box_over_them():
    texts = {"A": list("abcdefx"), "B": list("abcdy"), "C": list("zb")}
    (axes,) = show.draw_shared_blocks(texts, block_size=2).axes
    boxes = [
        (b.get_x(), round(b.get_y()), round(b.get_height() + 0.16)) for b in axes.patches if b.get_linewidth()
    ]
    assert boxes == [(0, 0, 2), (2, 0, 2), (4, 0, 1), (0, 2, 1)]


def test_write_indices_are_tensors_numbers_or_nothing():
    said = texts(show.draw_write_indices(WAYS))
    assert said.count("20") == 3 + 1 and said.count("7") == 2
    assert said.count("nothing: row b is request b") == 1


def test_weights_stand_over_the_blocks_of_their_tokens():
    figure = show.draw_weights(("R", ":", "\n"), (0, 7), 2, (0.1, 0.6, 0.3), (0, 1, 0), "Head 2")
    yours, expected = figure.axes[0].containers
    assert [bar.get_height() for bar in yours] == [0.1, 0.6, 0.3]
    assert [bar.get_height() for bar in expected] == [0, 1, 0]
    assert [(box.get_x(), box.get_width()) for box in figure.axes[0].patches[-2:]] == [(-0.5, 2), (1.5, 2)]


def test_a_gpu_is_drawn_by_its_numbers_and_a_wave_by_what_it_fills():
    from labkit.learn.before_03.occupancy import H100, Kernel

    (axes,) = show.draw_multiprocessor(H100).axes
    assert len(axes.patches) == 132 + 64 + 6  # multiprocessors, places for warps, and boxes
    kernel = Kernel(600, warps=4, registers=128)
    top, bottom = show.draw_occupancy(kernel.room(), kernel.waves(), "600 programs").axes
    assert [bar.get_width() for bar in top.patches] == [32, 16, 4, 228]
    assert bottom.collections[0].get_array().shape == (2, 132)
    assert [text.get_text() for text in bottom.texts] == ["528", "72"]
