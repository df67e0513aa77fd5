"""What a step hands out, kept as columns: a batch of tokens is added as a whole."""

from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import overload

from labkit.engine.request import Completion, StepOutput


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

    @overload
    def __getitem__(self, place: int) -> StepOutput: ...

    @overload
    def __getitem__(self, place: slice) -> list[StepOutput]: ...

    def __getitem__(self, place: int | slice) -> StepOutput | list[StepOutput]:
        if isinstance(place, slice):
            return list(self)[place]
        place = range(len(self))[place]
        return StepOutput(self.request_ids[place], self.token_ids[place], self._completions.get(place))

    def __iter__(self) -> Iterator[StepOutput]:
        completions = map(self._completions.get, range(len(self)))
        return starmap(StepOutput, zip(self.request_ids, self.token_ids, completions, strict=True))

    def __repr__(self) -> str:
        return repr(list(self))
