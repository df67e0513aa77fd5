"""Steps in flight: each is launched for requests that run, read once, and its tokens go where they belong."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request
from labkit.engine.step.resident import StepInFlight
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.schedule import Invariant
from labkit.watch.replaced import replaced


@dataclass(eq=False)
class Launched:
    """A step that was launched: its number, from 1, and for whom."""

    number: int
    requests: Sequence[Request]
    sessions: Sequence[InferenceSession]


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
        self.decode_step = engine.decode_step
        self.scheduler, self.kv_manager = engine.scheduler, engine.kv_manager
        self._unread: list[Launched] = []  # the oldest first
        self._num_launched = 0
        self._accounts: dict[InferenceSession, Account] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, launches and reads are proven."""
        with ExitStack() as stack:

            def starting(inner: Callable[..., StepInFlight]) -> Callable[..., StepInFlight]:
                def start(
                    requests: Sequence[Request], sessions: Sequence[InferenceSession], *about: object
                ) -> StepInFlight:
                    launched = Launched(self._num_launched + 1, requests, sessions)
                    self._check_launch(launched)
                    step = inner(requests, sessions, *about)
                    self._num_launched += 1
                    self._unread.append(launched)
                    for session in sessions:
                        self._accounts[session].num_launched += 1
                    stack.enter_context(replaced(step, "read", self._reading(launched)))
                    return step

                return start

            stack.enter_context(replaced(self.decode_step, "start", starting))
            yield

    def _is_running(self, launched: Launched) -> bool:
        """Whether a running request waits for the step's tokens."""
        running = self.scheduler.running
        pairs = zip(launched.requests, launched.sessions, strict=True)
        return any(running.get(request) is session for request, session in pairs)

    # --- launches --------------------------------------------------------------------------------------

    def _check_launch(self, launched: Launched) -> None:
        for request, session in zip(launched.requests, launched.sessions, strict=True):
            account = self._accounts.setdefault(session, Account(request, len(request.output_token_ids)))
            if account.num_left <= 0:
                raise BrokenContract(
                    f"a limit counts the token in flight: step {launched.number} is launched for request "
                    f"{request.request_id}, whose last token of {request.params.max_new_tokens} is made or "
                    "in flight already. Launch the next step by `launch_behind`, which takes the requests "
                    "that `going_on` returns. It counts a token in flight if `in_flight` has the session."
                )
        for request, session in self.scheduler.running.items():
            account = self._accounts.get(session) or Account(request, len(request.output_token_ids))
            if session not in launched.sessions and account.num_left > 0:
                raise BrokenContract(
                    f"every request that has a token to make is launched: step {launched.number} is launched "
                    f"without request {request.request_id}, which may make {account.num_left} more after "
                    "those that are made or in flight. In `going_on`, a token in flight counts for its own "
                    "session alone."
                )

    # --- reads -----------------------------------------------------------------------------------------

    def _reading(self, launched: Launched) -> Callable:
        def wrapper(inner: Callable[[], Sequence[int | None]]) -> Callable[[], Sequence[int | None]]:
            def read() -> Sequence[int | None]:
                self._check_read_is_due(launched)
                try:
                    token_ids = inner()
                except BaseException:
                    self._undo_from(launched)
                    raise
                self._unread = self._unread[self._unread.index(launched) + 1 :]
                for session, token_id in zip(launched.sessions, token_ids, strict=True):
                    self._accounts[session].made.append(token_id)
                return token_ids

            return read

        return wrapper

    def _check_read_is_due(self, launched: Launched) -> None:
        number = launched.number
        due = next((step for step in self._unread if step is launched or self._is_running(step)), None)
        if due is not launched:
            raise BrokenContract(
                f"every step is read once, in the order of the launches: step {number} is read, expected "
                f"{f'step {due.number}' if due else 'none'}. Read the older step, and keep the newer one in "
                "`self.in_flight` for the next call."
            )
        if launched is self._unread[-1] and self._could_launch(launched):
            raise BrokenContract(
                f"the next step is launched before this one is read: step {number} is read while no other is "
                "in flight, although there are tokens to make and blocks for them. The GPU would wait for "
                "the host. First launch the next step by `launch_behind`, then read."
            )

    def _could_launch(self, launched: Launched) -> bool:
        """Whether a step could be in flight behind this one, for certain."""
        running = self.scheduler.running
        knows = self.decode_step.slots.knows
        accounts = [self._accounts.get(session) for session in running.values()]
        return (
            any(account is None or account.num_left > 0 for account in accounts)
            and len(running) <= self.kv_manager.num_free_blocks
            and all(knows(s) for s in launched.sessions if s in running.values())
        )

    def _undo_from(self, launched: Launched) -> None:
        """A step that cannot be read is undone, and what is behind it, which was computed from its tokens."""
        place = self._unread.index(launched)
        for undone in self._unread[place:]:
            for session in undone.sessions:
                self._accounts[session].num_launched -= 1
        self._unread = self._unread[:place]

    # --- between two moves -----------------------------------------------------------------------------

    def invariants(self) -> tuple[Invariant, ...]:
        """What holds between two moves."""
        return (
            Invariant(
                "a token goes to the session that it was launched for, or to nobody",
                self._misdelivered,
                "`still_running` leaves out the rows of a request that has ended, or that runs in another "
                "session: it was preempted, and has come back in a new one.",
            ),
            Invariant(
                "the host has counted every launch",
                self._miscounted,
                "A launch makes its sessions longer by one token, on the host and on the device. A step that "
                "cannot be read is undone, by `self.read`.",
            ),
            Invariant(
                "is_ahead says whether a step is in flight",
                self._not_as_is_ahead_says,
                "It is True if `self.in_flight` holds one. Keep the step there that is launched and not "
                "read, or None.",
            ),
        )

    def _misdelivered(self, engine: InferenceEngine) -> str:
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

    def _miscounted(self, engine: InferenceEngine) -> str:
        slots = engine.decode_step.slots
        for request, session in engine.scheduler.running.items():
            in_flight = sum(session in launched.sessions for launched in self._unread)
            expected = request.num_tokens - 1 + in_flight
            there = {"its session": session.num_tokens}
            if slots.knows(session):
                there["the device"] = slots.context_lens[slots.slot_of[session]].item()
            for who, num_tokens in there.items():
                if num_tokens != expected:
                    return (
                        f"request {request.request_id} has {request.num_tokens} tokens, of which the last is "
                        f"not in the cache, and {in_flight} in flight; {who} counts {num_tokens}, expected "
                        f"{expected}."
                    )
        return ""

    def _not_as_is_ahead_says(self, engine: InferenceEngine) -> str:
        says = engine.readback.is_ahead
        awaited = [launched.number for launched in self._unread if self._is_running(launched)]
        if awaited and not says:
            return f"it is {says}, and step {awaited[0]} is in flight."
        return f"it is {says}, and no step is in flight." if says and not self._unread else ""


@contextmanager
def flights_proven(engine: InferenceEngine) -> Iterator[Sequence[Invariant]]:
    """Inside the block, every launch and every read is proven as `InFlight` says; the value is what holds
    between two moves."""
    in_flight = InFlight(engine)
    with in_flight.watching():
        yield in_flight.invariants()
