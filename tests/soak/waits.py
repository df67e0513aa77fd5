"""How long requests wait for their first admission, and who is admitted before them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from labkit.engine import InferenceEngine
from labkit.engine.request import Request
from labkit.engine.scheduler import Admitted
from labkit.watch.replaced import noting, replaced


@dataclass
class Wait:
    """A request that was not admitted yet.

    bound: the steps after which those ahead of it have made all their tokens, at one token per step, and
        where prompts are computed in chunks (rung 13) at one chunk per step before.
    """

    arrived: int  # the step
    bound: int
    times_passed_over: int = 0  # admissions of one that came later


class Waits:
    """The worst of all waits so far.

    longest: in steps. nearest_to_bound: the largest share of its bound that a wait has taken.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self.longest = self.most_passed_over = self.most_waiting = 0
        self.nearest_to_bound = 0.0
        self._engine = engine
        self._waiting = engine.scheduler.waiting
        self._open: WeakKeyDictionary[Request, Wait] = WeakKeyDictionary()

    def note_arrival(self, request: Request) -> None:
        """A request joins the queue: all who are there are ahead of it."""
        self.most_waiting = max(self.most_waiting, len(self._waiting) + 1)
        ahead = sum(map(self._steps_of, self._engine.scheduler.requests))
        self._open[request] = Wait(self._num_steps(), bound=ahead + 1)

    def note_admissions(self, admitted: list[Admitted]) -> None:
        """Requests leave the queue; those that were there before them wait on."""
        step = self._num_steps()
        for request, _, _ in admitted:
            wait = self._open.pop(request, None)  # None: it was preempted, and waited for a second time
            if wait is not None:
                self.longest = max(self.longest, step - wait.arrived)
                self.nearest_to_bound = max(self.nearest_to_bound, (step - wait.arrived) / wait.bound)
        latest = max((request.request_id for request, _, _ in admitted), default=-1)
        for request in self._waiting:
            if request.request_id < latest and (wait := self._open.get(request)):
                wait.times_passed_over += 1
                self.most_passed_over = max(self.most_passed_over, wait.times_passed_over)
                later = (r for r, _, _ in admitted if r.request_id > request.request_id)
                wait.bound += sum(map(self._steps_of, later))

    def _steps_of(self, request: Request) -> int:
        """Steps that a request takes by itself: a token each, and on rung 13 its chunks, read one behind."""
        tokens_left = request.params.max_new_tokens - len(request.output_token_ids)
        if self._engine.options.batching == "padded":
            return tokens_left
        config = self._engine.scheduler.config
        chunk = min(config.prefill_max_tokens, config.prefill_chunk_tokens)
        return tokens_left + -(-request.num_tokens // chunk)

    def _num_steps(self) -> int:
        return self._engine.stats().counters.steps


@contextmanager
def record_waits(engine: InferenceEngine) -> Iterator[Waits]:
    """Watch who waits inside the block. A request that is admitted again after a preemption counts once."""
    waits = Waits(engine)

    def noting_admissions(admit: Callable[..., list[Admitted]]) -> Callable[..., list[Admitted]]:
        def admit_and_note(*room: int) -> list[Admitted]:
            admitted = admit(*room)
            waits.note_admissions(admitted)
            return admitted

        return admit_and_note

    scheduler = engine.scheduler
    with (
        replaced(scheduler, "add", noting(waits.note_arrival)),
        replaced(scheduler, "admit", noting_admissions),
    ):
        yield waits
