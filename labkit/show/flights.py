"""Steps in flight: what was launched, when it was read, and who got the tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.engine import InferenceEngine
from labkit.engine.overlap import NextTokens
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.show.style import BLUE, INK, ORANGE, PALE, RED, figure, styled

BOX = 0.8


@dataclass
class Flight:
    """A step that was launched. Calls are numbered from 1: those in which the engine decodes."""

    number: int  # from 1
    launched_in: int  # the call
    request_ids: list[int]
    read_in: int | None = None  # None: never read
    token_ids: list[int | None] = field(default_factory=list)  # what was read, in the requests' order
    handed_to: set[int] = field(default_factory=set)

    @property
    def to_nobody(self) -> list[int]:
        """The requests whose token nobody gets."""
        return [request_id for request_id in self.request_ids if request_id not in self.handed_to]


@dataclass
class Flights:
    """All steps that an engine launched while it was watched, in order, and how many times it decoded."""

    flights: list[Flight] = field(default_factory=list)
    calls: int = 0

    @property
    def tokens_launched(self) -> int:
        return sum(len(flight.request_ids) for flight in self.flights)

    @property
    def tokens_handed_out(self) -> int:
        return sum(len(flight.handed_to) for flight in self.flights)

    @property
    def tokens_to_nobody(self) -> int:
        return self.tokens_launched - self.tokens_handed_out

    @property
    def most_in_flight(self) -> int:
        """Steps that had been launched and not read, at most, at the end of a call's launches."""
        return max(
            sum(f.launched_in <= call and (f.read_in is None or f.read_in >= call) for f in self.flights)
            for call in range(1, self.calls + 1)
        )

    @property
    def calls_that_waited(self) -> list[int]:
        """The calls that read a step and had none behind it."""
        ahead = {flight.read_in for flight in self.flights} - {None}
        behind = {call for f in self.flights for call in self._calls_on_board(f)}
        return sorted(ahead - behind)

    def _calls_on_board(self, flight: Flight) -> range:
        """The calls that ended with this step in flight."""
        return range(flight.launched_in, self.calls + 1 if flight.read_in is None else flight.read_in)

    def table(self) -> pd.DataFrame:
        """A line a step."""
        return pd.DataFrame(
            [
                {
                    "step": flight.number,
                    "launched in call": flight.launched_in,
                    "read in call": "-" if flight.read_in is None else flight.read_in,
                    "requests": names(flight.request_ids),
                    "tokens to nobody": names(flight.to_nobody),
                }
                for flight in self.flights
            ]
        ).set_index("step")


def names(request_ids: Sequence[int]) -> str:
    return " ".join(map(str, request_ids)) or "-"


@contextmanager
def record_flights(engine: InferenceEngine) -> Iterator[Flights]:
    """Watch what the engine launches and reads. Raises ValueError for one whose steps are not launched."""
    step, readback = engine.decode_step, engine.readback
    if not isinstance(step, ResidentDecodeStep):
        raise ValueError("this rung's steps are not launched and read apart; take rung 06 or above")
    watched = Flights()
    start, next_tokens = step.start, readback.next_tokens

    def start_and_note(requests: Sequence[Request], *about: object) -> StepInFlight:
        step_in_flight = start(requests, *about)
        ids = [request.request_id for request in requests]
        flight = Flight(len(watched.flights) + 1, watched.calls, ids)
        watched.flights.append(flight)
        _note_its_end(step_in_flight, flight, watched)
        return step_in_flight

    def next_tokens_and_note(running: RunningRequests) -> NextTokens:
        watched.calls += 1
        made = next_tokens(running)
        for flight in watched.flights:  # the one that was read, unless it was launched before
            if flight.read_in == watched.calls:
                flight.handed_to = {request.request_id for request in made.requests}
        return made

    step.start, readback.next_tokens = start_and_note, next_tokens_and_note
    try:
        yield watched
    finally:
        del step.start, readback.next_tokens  # the classes' own again


def _note_its_end(step: StepInFlight, flight: Flight, watched: Flights) -> None:
    read = step.read

    def read_and_note() -> list[int | None]:
        flight.token_ids = read()
        flight.read_in = watched.calls
        return flight.token_ids

    step.read = read_and_note


@styled
def draw_flights(watched: Flights, ends: int | None = None, title: str = "") -> Figure:
    """A column a step, a row a request: a box where its token was on board, hollow if nobody got it.

    ends: the token id that ends a text; its box says so.
    """
    request_ids = sorted({i for flight in watched.flights for i in flight.request_ids})
    fig, axes = figure(1.5 + 0.4 * len(request_ids))
    for flight in watched.flights:
        tokens = dict(zip(flight.request_ids, flight.token_ids, strict=False))
        for request_id in flight.request_ids:
            row, is_handed_out = request_ids.index(request_id), request_id in flight.handed_to
            is_end = ends is not None and tokens.get(request_id) == ends
            _draw_box(axes, row, flight.number, is_handed_out, is_end)
    axes.set_xlim(0.4, len(watched.flights) + 0.6)
    axes.set_xticks(range(1, len(watched.flights) + 1))
    axes.set_yticks(range(len(request_ids)), [f"request {i}" for i in request_ids])
    axes.set_ylim(len(request_ids) - 0.4, -0.6)
    axes.set_xlabel("decode step, in the order of their launches")
    axes.set_title(title or "Whose tokens each step makes, and who gets them")
    fig.legend(
        handles=[
            Patch(facecolor=BLUE, alpha=0.75, label="handed out"),
            Patch(facecolor=ORANGE, label="handed out, and it ends the text"),
            Patch(facecolor=PALE, edgecolor=RED, lw=1.5, label="made, and nobody gets it"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return fig


def _draw_box(axes: Axes, row: int, number: int, is_handed_out: bool, is_end: bool) -> None:
    place = (number - BOX / 2, row - BOX / 2)
    if not is_handed_out:
        axes.add_patch(Rectangle(place, BOX, BOX, facecolor=PALE, edgecolor=RED, lw=1.5))
        axes.text(number, row, "×", ha="center", va="center", color=RED, weight="bold")
        return
    face = {"facecolor": ORANGE} if is_end else {"facecolor": BLUE, "alpha": 0.75}
    axes.add_patch(Rectangle(place, BOX, BOX, lw=0, **face))
    if is_end:
        axes.text(number, row, "end", ha="center", va="center", color=INK, fontsize=8)
