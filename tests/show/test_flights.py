"""Steps in flight, and who gets their tokens."""

from figures import texts, tick_labels, title
from matplotlib.colors import same_color

from labkit import show
from labkit.show.style import BLUE, ORANGE, PALE
from labkit.watch import Flight, Flights


def test_a_request_without_a_token_is_no_end_unless_the_end_was_asked_for():
    flight = Flight(1, 1, [0], read_in=2, token_ids=[None], handed_to={0})
    assert texts(show.draw_flights(Flights([flight], calls=2))) == []


def test_a_token_that_nobody_gets_is_hollow_and_one_that_ends_a_text_says_so():
    flights = [
        Flight(1, 1, [4, 6], read_in=2, token_ids=[10, 99], handed_to={4, 6}),
        Flight(2, 2, [4, 6], read_in=3, token_ids=[11, 12], handed_to={4}),
    ]
    figure = show.draw_flights(Flights(flights, calls=3), ends=99)
    (axes,) = figure.axes
    assert tick_labels(axes.yaxis) == ["request 4", "request 6"]
    assert list(axes.get_xticks()) == [1, 2]
    assert axes.get_xlabel() == "decode step, in the order of their launches"
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("end", (1, 1)), ("×", (2, 1))]
    shades = [BLUE, ORANGE, BLUE, PALE]
    assert all(same_color(b.get_facecolor()[:3], c) for b, c in zip(axes.patches, shades, strict=True))
    assert title(figure) == "Whose tokens each step makes, and who gets them"
    assert title(show.draw_flights(Flights(flights, calls=3), title="mine")) == "mine"
