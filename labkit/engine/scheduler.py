"""Who is admitted and who is preempted: policy only, no tensors."""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from labkit.engine.config import SchedulerConfig
from labkit.engine.request import Request


class OnlineScheduler:
    """Continuous batching (Orca, Yu et al., 2022): requests join and leave the batch between steps."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of admission, the oldest first

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)

    def admit(self, claim: Callable[[Request], bool]) -> list[Request]:
        """Move requests from waiting to running, as policy and budgets allow.

        claim(request) reserves the request's memory and says whether there was enough; the first
        that does not fit ends the admission, so that a big request is not starved by small ones.
        """
        admitted: list[Request] = []
        num_tokens = 0
        for request in self._in_order():
            if not self._has_room(admitted, num_tokens + request.num_tokens) or not claim(request):
                break
            admitted.append(request)
            num_tokens += request.num_tokens
        for request in admitted:
            self.waiting.remove(request)
        self._count_passed_over(admitted)
        self.running += admitted
        return admitted

    def put_back(self, requests: Iterable[Request]) -> None:
        """Undo an admission, or preempt: the requests wait again, ahead of all others, in the order given."""
        requests = list(requests)
        for request in requests:
            self.running.remove(request)
        self.waiting.extendleft(reversed(requests))

    def _has_room(self, admitted: list[Request], num_tokens: int) -> bool:
        return (
            len(self.running) + len(admitted) < self.config.max_batch_size
            and len(admitted) < self.config.prefill_max_batch_size
            and (not admitted or num_tokens <= self.config.prefill_max_tokens)
        )

    def _in_order(self) -> list[Request]:
        if self.config.admission_policy == "fifo":
            return list(self.waiting)
        limit = self.config.pack_window
        overdue = sorted(
            (r for r in self.waiting if r.times_passed_over >= limit), key=lambda r: r.request_id
        )
        window = islice(self.waiting, min(limit, len(self.waiting)))  # a limit of any size
        others = [r for r in window if r.times_passed_over < limit]
        return overdue + sorted(others, key=lambda r: r.num_tokens)

    def _count_passed_over(self, admitted: list[Request]) -> None:
        """Whoever still waits and came before somebody who was admitted was passed over once more."""
        if not admitted:
            return
        last_arrival = max(r.request_id for r in admitted)
        for request in self.waiting:
            if request.request_id < last_arrival:
                request.times_passed_over += 1
