"""What holds where each request's state lies on the device (rung 06 and above), looked at in every launch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession, SamplingParams
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.slots import SlotState
from labkit.kernels import SamplingState
from labkit.learn.exercise import BrokenContract
from labkit.watch.replaced import noting, replaced

# Requests of a schedule: a stale temperature, seed or number of draws makes other tokens.
MIXED = (
    SamplingParams(stop_on_eos=False),
    SamplingParams(temperature=0.8, top_p=0.9, seed=3, stop_on_eos=False),
    SamplingParams(stop_on_eos=False),
    SamplingParams(temperature=1.2, top_k=5, seed=2**40, stop_on_eos=False),
)
OF_A_SLOT = ("context_lens", "last_token_ids", *SamplingState._fields)
SENT_ONCE = (*OF_A_SLOT, "block_tables", "slot_mapping")  # not sent again while it is as the device has it
UNTOUCHED = -9  # stands in what must not be sent


def of_a_slot(slots: SlotState) -> dict[str, Tensor]:
    """The tensors of OF_A_SLOT, by name."""
    counted = {"context_lens": slots.context_lens, "last_token_ids": slots.last_token_ids}
    return counted | slots.sampling_state._asdict()


def check_mapping(slots: SlotState, requests: Sequence[Request]) -> list[int]:
    """The slot of each request of a step. Raises BrokenContract if two share one, or a row has none."""
    padding_slot = len(slots.slot_mapping)
    mapping = slots.slot_mapping.tolist()
    slot_of: dict[int, Request] = {}
    for row, (slot, request) in enumerate(zip(mapping, requests, strict=False)):
        if not 0 <= slot < padding_slot:
            raise BrokenContract(
                f"a row names its request's slot: slot_mapping[{row}] is {slot} for request "
                f"{request.request_id}, expected one of 0 to {padding_slot - 1}. Hand out the slots 0 to "
                f"{padding_slot - 1} only, and send the mapping when the requests of the step are not those "
                "of the last."
            )
        if slot in slot_of:
            raise BrokenContract(
                f"a slot is one request's: slot {slot} has request {slot_of[slot].request_id} and request "
                f"{request.request_id} (row {row}). Hand out free slots only."
            )
        slot_of[slot] = request
    for row, slot in enumerate(mapping[len(requests) :], start=len(requests)):
        if slot != padding_slot:
            raise BrokenContract(
                f"rows after the batch are padding: slot_mapping[{row}] is {slot} in a step of "
                f"{len(requests)} requests, expected the padding slot, {padding_slot}. A request that "
                "has left has no row any more."
            )
    return mapping[: len(requests)]


def check_state(slots: SlotState, request: Request, session: InferenceSession, slot: int) -> None:
    """Raise BrokenContract if a slot is not what the host knows of its request: of a greedy one what its step
    looks at."""
    manager = session.kv_manager
    known: dict[str, int | float] = {
        "context_lens": session.num_tokens,
        "last_token_ids": request.output_token_ids[-1],
        "temperatures": request.params.temperature,
    }
    if not request.params.is_greedy:
        known |= request.sampling_state._asdict()
    for name, expected in known.items():
        there = of_a_slot(slots)[name][slot].item()
        if there != expected:
            raise BrokenContract(
                f"a slot is what the host knows: {name}[{slot}] is {there} for request {request.request_id}, "
                f"expected {expected}. Send it when the request joins, and once more after a step that was "
                "undone; between the two the device counts by itself."
            )
    for table_idx, block_ids in enumerate(session.block_ids_per_layer):
        row = slots.block_tables[table_idx, slot].tolist()
        for entry, (there, block_id) in enumerate(zip(row, block_ids, strict=False)):
            expected = block_id - manager.layer_offset(table_idx)
            if there != expected:
                raise BrokenContract(
                    f"a row names the blocks that its request holds now: table {table_idx}, request "
                    f"{request.request_id} (slot {slot}), entry {entry} names block {there}, expected "
                    f"{expected}. Send the row before the launch: who joined, and who is in `changed`. A "
                    "block's number counts from the first of its own table."
                )


def _check_once(sessions: Collection[object]) -> None:
    """Raise BrokenContract if a row is sent twice."""
    if len({*sessions}) < len(sessions):
        raise BrokenContract(
            "what is sent goes once: send_rows was called for a request twice in one call. A request that "
            "joins may also have changed, and a list of blocks changes in each table."
        )


class Launches:
    """Proves, in each launch of a step, that the device knows what the host knows, and that of `sent_once`,
    some names of SENT_ONCE, it was told nothing that it knew.

    What the device knows already is hidden while the slots are updated: what is there again was sent.
    """

    def __init__(self, engine: InferenceEngine, sent_once: Collection[str] = SENT_ONCE) -> None:
        self.slots: SlotState = engine.decode_step.slots
        self._sent_once = sent_once
        self._slot_of: dict[InferenceSession, int] = {}  # of the last launch that was not undone
        self._name_of: dict[InferenceSession, str] = {}
        self._known: dict[InferenceSession, int] = {}  # of them, those that the device knew before this one
        self._hidden: list[tuple[str, str, Tensor, Tensor]] = []  # what, whose, a view, what was in it

    def launching(self, inner: Callable) -> Callable:
        """A wrapper for the step's `launch`."""

        def launch(running: RunningRequests) -> object:
            self._hide(running)
            try:
                return inner(running)
            finally:
                self._restore()

        return launch

    def starting(self, inner: Callable) -> Callable:
        """A wrapper for the step's `start`."""

        def start(requests: list[Request], sessions: list[InferenceSession], *about: object) -> object:
            needless = self._sent_though_hidden()
            self._restore()
            mapping = check_mapping(self.slots, requests)
            self._check_slots_are_kept(dict(zip(sessions, mapping, strict=True)))
            for request, session, slot in zip(requests, sessions, mapping, strict=True):
                check_state(self.slots, request, session, slot)
            self._check_who_left(sessions)
            if needless:
                raise BrokenContract(
                    f"only what changed is sent: {needless}, where nothing had changed. In a step "
                    "of the same requests, in which no list of blocks has changed, nothing is sent."
                )
            self._slot_of = dict(zip(sessions, mapping, strict=True))
            names = [f"request {request.request_id}" for request in requests]
            self._name_of = dict(zip(sessions, names, strict=True))
            return inner(requests, sessions, *about)

        return start

    def _check_slots_are_kept(self, slot_of: dict[InferenceSession, int]) -> None:
        for session, slot in self._known.items():
            if slot_of[session] != slot:
                raise BrokenContract(
                    f"a request keeps its slot: {self._name_of[session]} had slot {slot} in the last step "
                    f"and has slot {slot_of[session]} now. A session that has a slot keeps it when others "
                    "join or leave. Otherwise all that is there would have to be sent again."
                )

    def _check_who_left(self, sessions: list[InferenceSession]) -> None:
        for session in self._slot_of.keys() - set(sessions):
            if self.slots.knows(session):
                raise BrokenContract(
                    f"slots of those who left are free again: {self._name_of[session]} has left and still "
                    f"has slot {self._slot_of[session]}. Take the slots of all who are not in the step "
                    "before you give any out."
                )

    # --- what must not be sent -------------------------------------------------------------------------

    def _hide(self, running: RunningRequests) -> None:
        sessions = list(running.values())
        known = {s: slot for s, slot in self._slot_of.items() if s in sessions and self.slots.knows(s)}
        self._known = known
        for session, slot in known.items():
            whose = f"{self._name_of[session]} (slot {slot})"
            for name, tensor in of_a_slot(self.slots).items():
                self._hide_one(name, whose, tensor[slot])
            if not session.next_token_takes_block:
                self._hide_one("block_tables", whose, self.slots.block_tables[:, slot])
        if sessions == list(self._slot_of) and len(known) == len(sessions):
            self._hide_one("slot_mapping", "the same requests", self.slots.slot_mapping)

    def _hide_one(self, name: str, whose: str, there: Tensor) -> None:
        if name in self._sent_once:
            self._hidden.append((name, whose, there, there.clone()))
            there.fill_(UNTOUCHED)

    def _sent_though_hidden(self) -> str:
        for name, whose, there, _ in self._hidden:
            if (there != UNTOUCHED).any():
                return f"{name} was sent for {whose}"
        return ""

    def _restore(self) -> None:
        for _, _, there, before in self._hidden:
            there.copy_(before.where(there == UNTOUCHED, there))  # what was sent stays
        self._hidden = []


@contextmanager
def launches_proven(engine: InferenceEngine, sent_once: Collection[str] = SENT_ONCE) -> Iterator[tuple[()]]:
    """Inside the block, every launch of the engine's is proven as `Launches` says."""
    launches, step = Launches(engine, sent_once), engine.decode_step
    is_ours = isinstance(step.slots, SlotState)  # a reader's need not be
    with (
        replaced(step, "launch", launches.launching),
        replaced(step, "start", launches.starting),
        replaced(step.slots, "send_rows", noting(_check_once)) if is_ours else nullcontext(),
    ):
        yield ()


def wrong_padding(engine: InferenceEngine) -> str:
    """The length of the padding slot, if it is not what it always is."""
    slots = engine.decode_step.slots
    padding_slot = len(slots.slot_mapping)
    there = slots.context_lens[padding_slot].item()
    return "" if there == -1 else f"context_lens[{padding_slot}] is {there}, expected -1."
