"""Tokens on their way out: to the requests that they were made for, and to the caller of `step`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

from labkit.checks import quoted
from labkit.engine.guard import Bookkeeping
from labkit.engine.overlap import Batch
from labkit.engine.request import Completion, FinishReason, Request, StepOutput
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.stats import EngineCounters
from labkit.model.tokenizer import Tokenizer


class StepOutputs(Sequence[StepOutput]):
    """A sequence of `StepOutput`, each made when it is asked for. To compare or to add them, make a list.

    request_ids, token_ids: of all outputs, in their order.
    """

    def __init__(self) -> None:
        self.request_ids: list[int] = []
        self.token_ids: list[int | None] = []
        self._completions: dict[int, Completion] = {}  # by place

    @property
    def completions(self) -> list[Completion]:
        """The completions of the requests that have ended, in the order of their ends."""
        return list(self._completions.values())

    def append(self, request_id: int, token_id: int | None, completion: Completion | None) -> None:
        """Add a request's token, or its end without one; the completion comes with the last."""
        if completion is not None:
            self._completions[len(self.request_ids)] = completion
        self.request_ids.append(request_id)
        self.token_ids.append(token_id)

    def extend(self, request_ids: Sequence[int], token_ids: Sequence[int | None]) -> None:
        """Add one token per request, of requests that go on."""
        self.request_ids += request_ids
        self.token_ids += token_ids

    def without(self, request_id: int) -> "StepOutputs":
        """A copy that lacks one request's outputs."""
        others = StepOutputs()
        for output in self:
            if output.request_id != request_id:
                others.append(*output)
        return others

    def __len__(self) -> int:
        return len(self.request_ids)

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    def __iter__(self) -> Iterator[StepOutput]:
        completions = map(self._completions.get, range(len(self)))
        return starmap(StepOutput, zip(self.request_ids, self.token_ids, completions, strict=True))

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(eq=False, repr=False)
class Delivery:
    """The unfinished requests: each gets its tokens, ends when it is done, and what was made is handed out.

    bookkeeping: of the engine's guard: an end that fails half way cannot be undone.
    requests: by id, until they end. of_step: the ids of those whose tokens `step` hands out.
    """

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    scheduler: OnlineScheduler
    counters: EngineCounters
    bookkeeping: Bookkeeping
    requests: dict[int, Request] = field(default_factory=dict)
    of_step: set[int] = field(default_factory=set)
    outbox: StepOutputs = field(default_factory=StepOutputs)  # made, and not handed out by `step` yet

    # --- tokens ------------------------------------------------------------------------------------

    def hand_out_batch(self, batch: Batch, token_ids: Sequence[int | None]) -> None:
        """Hand out the tokens that a batch has taken, which end no request, as a whole."""
        self.counters.generated_tokens += len(token_ids)
        if len(self.of_step) == len(self.requests):
            self.outbox.extend(batch.request_ids, token_ids)
        elif self.of_step:
            for request, token_id in zip(batch.requests, token_ids, strict=True):
                self._hand_out(request, token_id)

    def accept(self, requests: Sequence[Request], token_ids: Sequence[int | None]) -> None:
        """Give each request its token and end those that are done."""
        now = [time.perf_counter()]
        for request, token_id in zip(requests, token_ids, strict=True):
            if token_id is None:
                self.end(request, FinishReason.ERROR, "the model's logits are not finite numbers")
                continue
            try:
                is_last = request.decoder is not None and request.decoder.stops_at(token_id)
            except Exception as error:
                self.end(request, FinishReason.ERROR, f"its text cannot be decoded: {quoted(error)}")
                continue
            request.output_token_ids.append(token_id)
            request.time_lists.append(now)
            self.counters.generated_tokens += 1
            if is_last or (request.params.stop_on_eos and token_id in self.eos_token_ids):
                self.end(request, FinishReason.STOP)
            elif len(request.output_token_ids) == request.params.max_new_tokens:
                self.end(request, FinishReason.LENGTH)
            else:
                self._hand_out(request, token_id)

    def _hand_out(self, request: Request, token_id: int | None) -> None:
        if request.request_id in self.of_step:
            self.outbox.append(request.request_id, token_id, request.completion)

    # --- ends --------------------------------------------------------------------------------------

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> Completion:
        """End a request, wherever it is. If it is cancelled, nobody wants what waits for the next `step`."""
        with self.bookkeeping:
            self.scheduler.keep_text_of(request, reason)
            self.scheduler.remove(request)
            del self.requests[request.request_id]
            completion = request.complete(reason, self.tokenizer, error)
            self.counters.finished[str(reason)] = self.counters.finished.get(str(reason), 0) + 1
            if reason is FinishReason.CANCELLED:
                self.outbox = self.outbox.without(request.request_id)
            else:
                made_one = reason is not FinishReason.ERROR
                self._hand_out(request, request.output_token_ids[-1] if made_one else None)
            self.of_step.discard(request.request_id)
        return completion
