"""When a step's tokens are read: at once, or while the next step runs."""

from collections.abc import Sequence
from typing import NamedTuple

from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import Launched, ResidentDecodeStep
from labkit.engine.stretch import Stretch


class NextTokens(NamedTuple):
    """One token a request; None where its logits are not finite numbers.

    stretch: what books them as a whole, unless they end somebody; None if each request books its own.
    """

    requests: list[Request]
    token_ids: list[int | None]
    stretch: Stretch | None = None


class ReadAtOnce:
    """The host waits for each step (rungs up to 09)."""

    watch_points = ("next_tokens",)
    is_ahead = False  # whether a step has been launched that nobody has read

    def __init__(self, decode_step: DecodeStep | ResidentDecodeStep) -> None:
        self.decode_step = decode_step

    def next_tokens(self, running: Sequence[Request]) -> NextTokens:
        """One more token for every running request. If it fails, all are as before."""
        return NextTokens(list(running), self.decode_step.next_tokens(running))

    def launch_ahead(self, running: Sequence[Request]) -> None:
        """Have a step on its way before the next call: there is none."""

    def drop(self) -> None:
        """Nobody runs any more."""

    def settle(self) -> None:
        """Bring all books up to date, before somebody looks at them or changes who runs: they are."""


class ReadOneBehind:
    """Step N + 1 is launched before the tokens of step N are read, so that the GPU never waits for the host
    (rung 10).

    What the host learns from step N comes one step late: a request that turns out to have ended has one more
    token on its way, which nobody gets; one that has joined since gets its first token with step N + 1.
    """

    watch_points = ("next_tokens",)

    def __init__(self, decode_step: ResidentDecodeStep) -> None:
        self.decode_step = decode_step
        self._in_flight: Launched | None = None
        self._stretch: Stretch | None = None  # if the step in flight is one of a stretch

    @property
    def is_ahead(self) -> bool:
        return self._in_flight is not None

    def next_tokens(self, running: Sequence[Request]) -> NextTokens:
        """The next token of every request of the step in flight that still runs.

        If a launch fails, the step in flight stays there, for the next call to read. If reading fails, all
        are as before its launch.
        """
        if self._in_flight is None:
            self._launch_first(running)
        flight, following = self._in_flight, self._launch_following(running)
        self._in_flight = following
        try:
            token_ids = flight.read()
        except BaseException:
            self.drop()
            for launched in (flight, following):
                if launched is not None:
                    launched.cancel()
            raise
        if self._stretch is not None and self._stretch.sessions == flight.sessions:
            return NextTokens(self._stretch.requests, token_ids, self._stretch)
        still = self.still_there(flight)
        return NextTokens([flight.requests[b] for b in still], [token_ids[b] for b in still])

    def still_there(self, flight: Launched) -> list[int]:
        """Which of its requests, by place, get their token: not who has ended or was preempted since."""
        pairs = zip(flight.requests, flight.sessions, strict=True)
        return [b for b, (request, session) in enumerate(pairs) if request.session is session]

    def launch_ahead(self, running: Sequence[Request]) -> None:
        """Have a step on its way before the next call, if there is room. If that fails, all are as before."""
        if self._in_flight is None and running and self._has_room([r.session for r in running]):
            self._launch_first(running)

    def drop(self) -> None:
        self.settle()
        self._in_flight = None

    def settle(self) -> None:
        """Bring all books up to date, before somebody looks at them or changes who runs."""
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            stretch.settle()

    def _launch_following(self, running: Sequence[Request]) -> Launched | None:
        """The step behind the one in flight; None if it has to wait for what that one will tell."""
        if self._stretch is not None and self._stretch.can_go(running):
            return self._launch_again()
        self.settle()
        on_their_way = set(self._in_flight.sessions)
        num_made = [len(r.output_token_ids) + (r.session in on_their_way) for r in running]
        going = [r for r, made in zip(running, num_made, strict=True) if made < r.params.max_new_tokens]
        if not going or not self._can_go(going, on_their_way):
            return None
        if len(going) < len(running):
            return self.decode_step.launch(going)
        return self._begin(going, num_made)

    def _launch_first(self, running: Sequence[Request]) -> None:
        self._in_flight = self._begin(list(running), [len(r.output_token_ids) for r in running])

    def _begin(self, requests: Sequence[Request], num_made: Sequence[int]) -> Launched:
        """Launch a step, and begin a stretch behind it. num_made: tokens of each, with those on their way."""
        launched = self.decode_step.launch(requests)
        self._stretch = Stretch(launched.requests, launched.sessions, [made + 1 for made in num_made])
        return launched

    def _launch_again(self) -> Launched:
        stretch, self._stretch = self._stretch, None  # a launch that fails ends it
        following = self.decode_step.launch_again(stretch)
        self._stretch = stretch
        return following

    def _can_go(self, going: Sequence[Request], on_their_way: set) -> bool:
        """Whether there are blocks for it, and nobody has to be told a token that is still on its way."""
        sessions = [request.session for request in going]
        knows = self.decode_step.slots.knows
        return self._has_room(sessions) and all(knows(s) for s in sessions if s in on_their_way)

    def _has_room(self, sessions: Sequence[InferenceSession]) -> bool:
        free = self.decode_step.kv_manager.num_free_blocks
        # A token takes one block at most.
        return len(sessions) <= free or sum(s.next_token_takes_block for s in sessions) <= free
