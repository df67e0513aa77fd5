"""Steps in flight, and who gets their tokens."""

from figures import texts

from labkit import show
from labkit.show.flights import Flight, Flights


def test_a_request_without_a_token_is_no_end_unless_the_end_was_asked_for():
    flight = Flight(1, 1, [0], read_in=2, token_ids=[None], handed_to={0})
    assert texts(show.draw_flights(Flights([flight], calls=2))) == []
