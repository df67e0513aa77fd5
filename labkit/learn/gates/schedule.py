"""Random schedules: requests join, share prompts, are cancelled and preempted, and each move is proven."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from labkit.engine import InferenceEngine, SamplingParams, StepOutput
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.staging import TokenCopy
from labkit.learn.exercise import BrokenContract
from labkit.watch.replaced import PlantedError, planted_failure

# Several begin with another one, so that blocks are shared, wholly and in part, and copied.
PROMPTS = ((1,), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 3, 9), (7, 8), tuple(range(20, 30)))
LENGTHS = (1, 4, 9, 14)  # new tokens of a request
GREEDY = SamplingParams(stop_on_eos=False)
STEPS_UNPROVEN = 5  # in a row
LAST_MOVES = 6  # that a report tells


class Invariant(NamedTuple):
    """What holds between two moves of any schedule.

    off: what is off in an engine, with the place, the value that is there and the one that should be; "" if
        nothing is. hint: the part of the contract that this is about.
    """

    name: str
    off: Callable[[InferenceEngine], str]
    hint: str


def prove(engine: InferenceEngine, invariants: Iterable[Invariant]) -> None:
    """Raise BrokenContract that tells what is off, if an invariant does not hold."""
    for name, off, hint in invariants:
        if wrong := off(engine):
            raise BrokenContract(f"{name}: {wrong} {hint}".rstrip())


class Schedule:
    """Random moves on one engine, the same for the same seed.

    expected: the tokens that a prompt gets with some parameters when it is alone. invariants: asked after
    each move, in this order; then the blocks are counted. samplings: how requests are sampled, in turn; each
    gets a length of its own. Where state lies on the device, some steps are made to fail on their way, and
    some are not proven one by one.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        expected: Callable[[tuple[int, ...], SamplingParams], tuple[int, ...]],
        invariants: Sequence[Invariant],
        seed: int,
        samplings: Sequence[SamplingParams] = (GREEDY,),
    ) -> None:
        self.engine = engine
        self.expected = expected
        self.invariants = invariants
        self.samplings = samplings
        self._rng = random.Random(seed)
        self._moves: list[str] = []
        self._num_joined = 0
        self._wanted: dict[int, tuple[int, ...]] = {}  # tokens of each unfinished request, by id
        self._received: dict[int, int] = {}  # how many of them were handed out

    def play(self, num_moves: int) -> None:
        """Make the moves, then step until all requests have ended. Raises BrokenContract that tells what was
        off first, and the moves that led there."""
        with telling(self._told):
            self._play(num_moves)

    def _play(self, num_moves: int) -> None:
        moves = [*[self._join] * 2, *[self._step] * 6, self._cancel, self._preempt]
        if isinstance(step := self.engine.decode_step, ResidentDecodeStep):
            launch, read = (step.pinned_tokens, "start_copy"), (TokenCopy, "read")
            moves += [
                *[self._some_steps] * 2,
                partial(self._fail, "a step, whose launch fails at its end", *launch),
                partial(self._fail, "a step, whose tokens cannot be read", *read),
            ]
        for _ in range(num_moves):
            self._prove_after(self._rng.choice(moves) if self.engine.has_work else self._join)
        while self.engine.has_work:
            self._prove_after(self._step)
        if self._wanted:
            raise BrokenContract(f"requests {sorted(self._wanted)} never ended.")

    def _prove_after(self, move: Callable[[], Iterable[StepOutput] | None]) -> None:
        handed_out = move() or ()
        if self.engine.guard.is_broken:
            raise BrokenContract(
                "a step that fails leaves all as it was before: after this one not every block is accounted "
                "for."
            )
        prove(self.engine, self.invariants)
        try:
            self.engine.check_integrity()
        except AssertionError as error:
            raise BrokenContract(f"every block is accounted for: {error}.") from error
        self._check(handed_out)

    def _told(self) -> str:
        earlier = len(self._moves) - LAST_MOVES
        so_far = "; ".join(self._moves[-LAST_MOVES:])
        return f" (After {f'{earlier} other moves and ' if earlier > 0 else ''}this: {so_far}.)"

    # --- moves -------------------------------------------------------------------------------------

    def _join(self) -> None:
        prompt, length = self._rng.choice(PROMPTS), self._rng.choice(LENGTHS)
        sampling = self.samplings[self._num_joined % len(self.samplings)]
        self._num_joined += 1
        params = replace(sampling, max_new_tokens=length)
        request_id = self.engine.add_request(prompt, params)
        self._wanted[request_id] = self.expected(prompt, params)
        self._received[request_id] = 0
        self._moves.append(f"request {request_id} joins with {len(prompt)} tokens, for {length} new ones")

    def _step(self) -> Iterable[StepOutput]:
        self._moves.append("a step")
        return self.engine.step()

    def _some_steps(self) -> Iterable[StepOutput]:
        self._moves.append(f"{STEPS_UNPROVEN} steps")
        return [output for _ in range(STEPS_UNPROVEN) for output in self.engine.step()]

    def _fail(self, what: str, owner: object, name: str) -> Iterable[StepOutput]:
        self._moves.append(what)
        with suppress(PlantedError), planted_failure(owner, name):
            return self.engine.step()
        return ()

    def _cancel(self) -> None:
        if not self._wanted:
            return
        request_id = self._rng.choice(sorted(self._wanted))
        self._moves.append(f"request {request_id} is cancelled")
        completion = self.engine.cancel(request_id)
        self._ended(request_id, completion.token_ids, len(completion.token_ids))

    def _preempt(self) -> None:
        scheduler = self.engine.scheduler
        if scheduler.running:
            newest = list(scheduler.running)[-1]
            self._moves.append(f"request {newest.request_id} is preempted")
            scheduler.preempt_newest()

    # --- tokens ------------------------------------------------------------------------------------

    def _check(self, handed_out: Iterable[StepOutput]) -> None:
        for request_id, token_id, completion in handed_out:
            if request_id not in self._wanted:
                raise BrokenContract(f"request {request_id} got token {token_id} after its end.")
            wanted, place = self._wanted[request_id], self._received[request_id]
            if token_id != wanted[place]:
                raise BrokenContract(
                    f"tokens: new token {place} of request {request_id} is {token_id}, expected "
                    f"{wanted[place]}: what it gets when it is alone."
                )
            self._received[request_id] += 1
            if completion:
                self._ended(request_id, completion.token_ids, len(wanted))

    def _ended(self, request_id: int, token_ids: tuple[int, ...], num_tokens: int) -> None:
        wanted = self._wanted.pop(request_id)[:num_tokens]
        if token_ids != wanted:
            raise BrokenContract(
                f"tokens: request {request_id} ended with {list(token_ids)}, expected {list(wanted)}."
            )


@contextmanager
def telling(story: Callable[[], str] = str) -> Iterator[None]:
    """Inside the block, a broken contract is raised in place of any error that came behind it."""
    try:
        yield
    except Exception as error:
        if broken := broken_behind(error):
            raise BrokenContract(f"{broken}{story()}") from error
        raise


def broken_behind(error: BaseException | None) -> BrokenContract | None:
    """The broken contract that an error is, or that it came behind: undoing a step may fail, too."""
    while error is not None and not isinstance(error, BrokenContract):
        error = error.__context__
    return error
