"""Steps in flight: each is launched for requests that run, read once, and its tokens go where they belong."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import StepInFlight
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.schedule import Invariant
from labkit.watch.replaced import noting, replaced

MOST_IN_FLIGHT = 2  # the step that is read next, and the one behind it


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
    made: list[tuple[int | None, str]] = field(default_factory=list)  # tokens, and of which row and step

    @property
    def num_left(self) -> int:
        """How many more may be launched before the request reaches its limit."""
        return self.request.params.max_new_tokens - self.num_first - self.num_launched

    def newest(self, token_id: int | None) -> str:
        """Where such a token was made last; empty if it never was."""
        return next((where for made, where in reversed(self.made) if made == token_id), "")


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
                    launched = self._launching(requests, sessions)
                    step = inner(requests, sessions, *about)
                    self._has_launched(launched)
                    stack.enter_context(replaced(step, "read", self._reading(launched)))
                    return step

                return start

            stack.enter_context(replaced(self.decode_step, "launch", noting(self._check_is_known)))
            stack.enter_context(replaced(self.decode_step, "start", starting))
            yield

    def _is_running(self, launched: Launched) -> bool:
        """Whether a running request waits for the step's tokens."""
        running = self.scheduler.running
        pairs = zip(launched.requests, launched.sessions, strict=True)
        return any(running.get(request) is session for request, session in pairs)

    def _awaited(self) -> list[Launched]:
        return [launched for launched in self._unread if self._is_running(launched)]

    # --- launches --------------------------------------------------------------------------------------

    def _launching(self, requests: Sequence[Request], sessions: Sequence[InferenceSession]) -> Launched:
        launched = Launched(self._num_launched + 1, requests, sessions)
        ahead = self._awaited()
        if len(ahead) == MOST_IN_FLIGHT:
            numbers = " and ".join(str(earlier.number) for earlier in ahead)
            raise BrokenContract(
                f"at most two steps are in flight: step {launched.number} is launched, and the tokens of "
                f"steps {numbers} are still to be read. Two buffers take turns for the tokens: read the "
                "older step first, keep the other in `self.in_flight`, and drop none that a running request "
                "is in."
            )
        for request, session in zip(requests, sessions, strict=True):
            account = self._accounts.setdefault(session, Account(request, len(request.output_token_ids)))
            if account.num_left <= 0:
                raise BrokenContract(
                    f"a limit counts the token in flight: step {launched.number} is launched for request "
                    f"{request.request_id}, whose last token of {request.params.max_new_tokens} is made or "
                    "in flight already. Launch the next step by `launch_behind`, which takes the requests "
                    "that `going_on` returns. It counts a token in flight if `in_flight` has the session."
                )
        self._check_nobody_is_left_out(launched)
        return launched

    def _check_is_known(self, running: RunningRequests) -> None:
        """Whether the device has every token that a launch needs and the host has not read."""
        in_flight = {session for launched in self._awaited() for session in launched.sessions}
        for request, session in running.items():
            if session in in_flight and not self.decode_step.slots.knows(session):
                raise BrokenContract(
                    "a step is launched after another only if the device has its tokens: step "
                    f"{self._num_launched + 1} is launched while a token of request {request.request_id} is "
                    "in flight, and the device was made to forget that request. `launch_behind` checks "
                    "that, and whether there are blocks; `decode_step.launch` does not."
                )

    def _check_nobody_is_left_out(self, launched: Launched) -> None:
        for request, session in self.scheduler.running.items():
            account = self._accounts.get(session) or Account(request, len(request.output_token_ids))
            if session not in launched.sessions and account.num_left > 0:
                raise BrokenContract(
                    f"every request that has a token to make is launched: step {launched.number} is launched "
                    f"without request {request.request_id}, which may make {account.num_left} more after "
                    "those that are made or in flight. In `going_on`, a token in flight counts for its own "
                    "session alone."
                )

    def _has_launched(self, launched: Launched) -> None:
        self._num_launched += 1
        self._unread.append(launched)
        for session in launched.sessions:
            self._accounts[session].num_launched += 1

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
                pairs = zip(launched.sessions, token_ids, strict=True)
                for row, (session, token_id) in enumerate(pairs):
                    self._accounts[session].made.append((token_id, f"row {row} of step {launched.number}"))
                return token_ids

            return read

        return wrapper

    def _check_read_is_due(self, launched: Launched) -> None:
        number = launched.number
        if launched not in self._unread:
            raise BrokenContract(
                f"a step is read once: step {number} is read again, or was undone or passed over. Let go of "
                "a step when you have read it."
            )
        for earlier in self._unread[: self._unread.index(launched)]:
            if self._is_running(earlier):
                raise BrokenContract(
                    f"every step is read, in the order of the launches: step {number} is read, but step "
                    f"{earlier.number}, for {names(earlier.requests)}, never was, and its tokens are lost. "
                    "Read the older step, and keep the newer one in `self.in_flight` for the next call."
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
                "`still_running` says which rows of a step are handed out.",
            ),
            Invariant(
                "a request that has ended gets nothing more",
                self._after_the_end,
                "A token in flight for a request that has ended belongs to nobody: `still_running` leaves it "
                "out.",
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
                if made is None:
                    return (
                        f"new token {place} of request {request.request_id} is {got}, expected none so far. "
                        f"{self._whence(account, got)}"
                    )
                token_id, where = made
                if got != token_id:
                    is_got = "missing" if got is None else got
                    return (
                        f"new token {place} of request {request.request_id} is {is_got}, expected "
                        f"{token_id}, from {where}: the request still runs in the session of that launch."
                    )
        return ""

    def _whence(self, account: Account, token_id: int | None) -> str:
        """Where a token comes from that is too many for the account's session, in a sentence."""
        request = account.request
        for other in reversed(self._accounts.values()):
            if other.request is request and other is not account and (where := other.newest(token_id)):
                return (
                    f"It is from {where}, which was launched for an earlier session of request "
                    f"{request.request_id}: it was preempted, and has come back in a new one."
                )
        if where := account.newest(token_id):
            return f"It is from {where}, and was handed out before."
        return f"No step made it for request {request.request_id}."

    def _after_the_end(self, engine: InferenceEngine) -> str:
        for request in {account.request for account in self._accounts.values()}:
            if request.completion and len(request.output_token_ids) > len(request.completion.token_ids):
                more = request.output_token_ids[len(request.completion.token_ids) :]
                return f"request {request.request_id} ended and got {more}."
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
        says, awaited = engine.readback.is_ahead, self._awaited()
        if awaited and not says:
            return (
                f"it is {says}, and step {awaited[0].number} for {names(awaited[0].requests)} is in flight."
            )
        return f"it is {says}, and no step is in flight." if says and not self._unread else ""


def names(requests: Sequence[Request]) -> str:
    """The requests, in words."""
    ids = [str(request.request_id) for request in requests]
    return f"request {ids[0]}" if len(ids) == 1 else f"requests {', '.join(ids)}"


@contextmanager
def flights_proven(engine: InferenceEngine) -> Iterator[Sequence[Invariant]]:
    """Inside the block, every launch and every read is proven as `InFlight` says; the value is what holds
    between two moves."""
    in_flight = InFlight(engine)
    with in_flight.watching():
        yield in_flight.invariants()
