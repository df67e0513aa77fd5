"""Who is admitted next and in which order they run: policy only, no memory and no tensors."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from labkit.engine.config import SchedulerConfig
from labkit.engine.request import Request


class OnlineScheduler:
    """Continuous batching (Orca, Yu et al., 2022): requests join and leave the batch between steps."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.waiting: OrderedDict[Request, None] = OrderedDict()  # a queue that anybody can leave at once
        self.running: list[Request] = []  # in order of admission, the oldest first

    def add(self, request: Request) -> None:
        self.waiting[request] = None

    def remove(self, request: Request) -> None:
        if request in self.waiting:
            del self.waiting[request]
        else:
            self.running.remove(request)

    def first(self) -> Request | None:
        """The request that `admit` would ask first; None if nobody waits or the batch is full."""
        if not self.waiting or len(self.running) >= self.config.max_batch_size:
            return None
        return next(iter(self._in_order()))

    def admit(self, claim: Callable[[Request], bool]) -> list[Request]:
        """Move requests from waiting to running, as policy and budgets allow.

        claim(request) reserves the request's memory and says whether there was enough; the first
        that does not fit ends the admission, so that a big request is not starved by small ones.
        If it raises, all wait as before.
        """
        admitted: list[Request] = []
        num_tokens = 0
        for request in self._in_order():
            if not self._has_room(admitted, num_tokens + request.num_tokens) or not claim(request):
                break
            admitted.append(request)
            num_tokens += request.num_tokens
        self._count_passed_over(admitted)
        for request in admitted:
            del self.waiting[request]
        self.running += admitted
        return admitted

    def put_back(self, requests: Iterable[Request]) -> None:
        """Undo an admission, or preempt: the requests wait again, ahead of all others, in the order given."""
        requests = list(requests)
        for request in requests:
            self.running.remove(request)
        for request in reversed(requests):
            self.waiting[request] = None
            self.waiting.move_to_end(request, last=False)

    def _has_room(self, admitted: list[Request], num_tokens: int) -> bool:
        return (
            len(self.running) + len(admitted) < self.config.max_batch_size
            and len(admitted) < self.config.prefill_max_batch_size
            and (not admitted or num_tokens <= self.config.prefill_max_tokens)
        )

    def _in_order(self) -> Iterable[Request]:
        if self.config.admission_policy == "fifo":
            return self.waiting
        limit = self.config.pack_window
        overdue = sorted(
            (r for r in self.waiting if r.times_passed_over >= limit), key=lambda r: r.request_id
        )
        window = islice(self.waiting, min(limit, len(self.waiting)))  # a limit of any size
        others = [r for r in window if r.times_passed_over < limit]
        return overdue + sorted(others, key=lambda r: r.num_tokens)

    def _count_passed_over(self, admitted: list[Request]) -> None:
        """Whoever still waits and came before somebody who was admitted was passed over once more."""
        if not admitted or self.config.admission_policy == "fifo":
            return
        last_arrival = max(r.request_id for r in admitted)
        for request in self.waiting.keys() - set(admitted):
            if request.request_id < last_arrival:
                request.times_passed_over += 1
