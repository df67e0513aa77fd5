"""Steps in flight: each is launched for requests that run, read once, and its tokens go where they belong."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.resident import StepInFlight
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.schedule import Invariant
from labkit.watch.replaced import replaced

Read = Callable[[], Sequence[int | None]]


@dataclass(eq=False)
class Account:
    """Of one session: the tokens that its request had at the first launch, how many steps were launched for
    it and not undone, and what those that were read have made."""

    request: Request
    num_first: int
    num_launched: int = 0
    made: list[int | None] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """How many more may be launched before the request reaches its limit."""
        return self.request.params.max_new_tokens - self.num_first - self.num_launched


class InFlight:
    """Proves in each launch and each read that it is due, and keeps account of every session's tokens."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self._numbers: dict[StepInFlight, int] = {}  # of each step that was launched, from 1
        self._unread: list[StepInFlight] = []  # of them, the oldest first
        self._accounts: dict[InferenceSession, Account] = {}

    # --- launches --------------------------------------------------------------------------------------

    def check_launch(self, requests: Sequence[Request], sessions: Sequence[InferenceSession]) -> None:
        """Raise BrokenContract if the next step is launched for a request that needs none, or without one
        that does."""
        number = len(self._numbers) + 1
        for request, session in zip(requests, sessions, strict=True):
            if self._account(request, session).num_left <= 0:
                raise BrokenContract(
                    f"a limit counts the token in flight: step {number} is launched for request "
                    f"{request.request_id}, whose last token of {request.params.max_new_tokens} is made or "
                    "in flight already. Launch the next step by `launch_behind`, which takes the requests "
                    "that `going_on` returns. It counts a token in flight if `in_flight` has the session."
                )
        for request, session in self.engine.scheduler.running.items():
            num_left = self._account(request, session).num_left
            if session not in sessions and num_left > 0:
                raise BrokenContract(
                    f"every request that has a token to make is launched: step {number} is launched "
                    f"without request {request.request_id}, which may make {num_left} more after "
                    "those that are made or in flight. In `going_on`, a token in flight counts for its own "
                    "session alone."
                )

    def launched(self, step: StepInFlight) -> None:
        """Note a step that was launched."""
        self._numbers[step] = len(self._numbers) + 1
        self._unread.append(step)
        for request, session in zip(step.requests, step.sessions, strict=True):
            account = self._accounts.setdefault(session, self._account(request, session))
            account.num_launched += 1

    def _account(self, request: Request, session: InferenceSession) -> Account:
        return self._accounts.get(session) or Account(request, len(request.output_token_ids))

    # --- reads -----------------------------------------------------------------------------------------

    def reading(self, step: StepInFlight, inner: Read) -> Read:
        """A wrapper for the step's `read`."""

        def read() -> Sequence[int | None]:
            self._check_read_is_due(step)
            place = self._unread.index(step)
            try:
                token_ids = inner()
            except BaseException:  # it is undone, and what is behind it, which was computed from its tokens
                for undone in self._unread[place:]:
                    for session in undone.sessions:
                        self._accounts[session].num_launched -= 1
                del self._unread[place:]
                raise
            del self._unread[: place + 1]
            for session, token_id in zip(step.sessions, token_ids, strict=True):
                self._accounts[session].made.append(token_id)
            return token_ids

        return read

    def _check_read_is_due(self, step: StepInFlight) -> None:
        number = self._numbers[step]
        due = next((each for each in self._unread if each is step or self._is_awaited(each)), None)
        if due is not step:
            raise BrokenContract(
                f"every step is read once, in the order of the launches: step {number} is read, expected "
                f"{f'step {self._numbers[due]}' if due else 'none'}. Read the older step, and keep the newer "
                "one in `self.in_flight` for the next call."
            )
        if step is self._unread[-1] and self._could_launch(step):
            raise BrokenContract(
                f"the next step is launched before this one is read: step {number} is read while no other is "
                "in flight, although there are tokens to make and blocks for them. The GPU would wait for "
                "the host. First launch the next step by `launch_behind`, then read."
            )

    def _is_awaited(self, step: StepInFlight) -> bool:
        """Whether a running request waits for the step's tokens."""
        running = self.engine.scheduler.running
        pairs = zip(step.requests, step.sessions, strict=True)
        return any(running.get(request) is session for request, session in pairs)

    def _could_launch(self, step: StepInFlight) -> bool:
        """Whether a step could be in flight behind this one, for certain."""
        running = self.engine.scheduler.running
        knows = self.engine.decode_step.slots.knows
        return (
            any(self._account(*pair).num_left > 0 for pair in running.items())
            and len(running) <= self.engine.kv_manager.num_free_blocks
            and all(knows(session) for session in step.sessions if session in running.values())
        )

    # --- between two moves -----------------------------------------------------------------------------

    def misdelivered(self, engine: InferenceEngine) -> str:
        """The first token of a running request that is not what its session was made."""
        for request, session in engine.scheduler.running.items():
            if (account := self._accounts.get(session)) is None:
                continue
            pairs = zip_longest(request.output_token_ids[account.num_first :], account.made)
            for place, (got, made) in enumerate(pairs, start=account.num_first):
                if got != made:
                    return (
                        f"new token {place} of request {request.request_id} is "
                        f"{'missing' if got is None else got}, expected "
                        f"{'none so far' if made is None else made}."
                    )
        return ""


@contextmanager
def flights_proven(engine: InferenceEngine) -> Iterator[Sequence[Invariant]]:
    """Inside the block, every launch and every read is proven as `InFlight` says; the value is what holds
    between two moves."""
    flights = InFlight(engine)
    with ExitStack() as stack:

        def starting(inner: Callable[..., StepInFlight]) -> Callable[..., StepInFlight]:
            def start(
                requests: Sequence[Request], sessions: Sequence[InferenceSession], *about: object
            ) -> StepInFlight:
                flights.check_launch(requests, sessions)
                step = inner(requests, sessions, *about)
                flights.launched(step)
                stack.enter_context(replaced(step, "read", partial(flights.reading, step)))
                return step

            return start

        stack.enter_context(replaced(engine.decode_step, "start", starting))
        yield (
            Invariant(
                "a token goes to the session that it was launched for, or to nobody",
                flights.misdelivered,
                "`still_running` leaves out the rows of a request that has ended, or that runs in another "
                "session: it was preempted, and has come back in a new one.",
            ),
        )
