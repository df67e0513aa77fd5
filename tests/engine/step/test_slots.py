"""Numbers on their way to the device and back, and what the device knows of each running request."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from devices import CPU, CUDA
from helpers import kv_numbers, make_manager
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit import SamplingParams
from labkit.engine import InferenceSession
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.slots import DeviceSlots, SlotMemory
from labkit.kernels.distribution import as_int64
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager

# --- the slots -------------------------------------------------------------------------------------

MAX_BATCH = 3
kinds = pytest.mark.parametrize("kind", [MutableInfoBlockManager, OneTableBlockManager])
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=7),
    SamplingParams(temperature=1e-30, top_k=10**30, top_p=5e-324, seed=-1),
    SamplingParams(temperature=10**300, top_k=1, top_p=1, seed=2**64 - 1),
    SamplingParams(temperature=1 / 3, seed=2**70 + 5),
    SamplingParams(temperature=0.5),  # a seed of its own
]


def reserve(sessions: list[InferenceSession]) -> list[list[int]]:
    """Room for one more token behind each; which lists changed, in each table. Nobody counts it yet."""
    manager = sessions[0].kv_manager
    return [
        manager.reserve_token_batch(i, [s.block_ids_per_layer[i] for s in sessions])
        for i in range(manager.num_tables)
    ]


def row_of(session: InferenceSession, table_idx: int) -> list[int]:
    """Which blocks a session's tokens lie in, as places in their pool, padded with 0."""
    manager = session.kv_manager
    places = [manager.info(i).block_index for i in session.block_ids_per_layer[table_idx]]
    return places + [0] * (manager.max_blocks_per_seq - len(places))


def assert_device_knows(slots: DeviceSlots, running: RunningRequests) -> None:
    """All that a step of these requests reads is what the sessions say; the padding slot is unchanged."""
    mapping = slots.slot_mapping.tolist()
    used, padding = mapping[: len(running)], mapping[len(running) :]
    assert len({*used}) == len(used)
    assert all(0 <= slot < slots.padding_slot for slot in used)
    assert set(padding) <= {slots.padding_slot}
    assert slots.context_lens[slots.padding_slot] == -1
    for slot, (request, session) in zip(used, running.items(), strict=True):
        params = request.params
        for table_idx, table in enumerate(slots.block_tables):
            assert table[slot].tolist() == row_of(session, table_idx)
        assert slots.context_lens[slot] == session.num_tokens
        assert slots.last_token_ids[slot] == request.output_token_ids[-1]
        state = slots.sampling_state.at(slot)
        assert state.temperatures.item().hex() == float(params.temperature).hex()
        assert state.top_ps.item().hex() == float(params.top_p).hex()
        assert state.min_ps.item() == params.min_p
        assert state.top_ks == min(params.top_k, 2**31)  # no vocabulary has more tokens
        assert state.seeds == as_int64(request.seed)
        if not params.is_greedy:
            assert state.draws == len(request.output_token_ids)


class SpiedSlots(DeviceSlots):
    """Notes what is sent to the device: whose rows, whose states, and for whom the mapping is."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.sent: dict[str, list] = {}
        send = self.staging.send

        def counted_send(numbers: Tensor, *target: Tensor) -> Tensor:
            self.sent["copies"] = [*self.sent.get("copies", []), len(numbers)]
            return send(numbers, *target)

        self.staging.send = counted_send

    def send_rows(self, sessions):
        self.sent["rows"] = list(sessions)
        super().send_rows(sessions)

    def send_states(self, requests):
        if requests:
            self.sent["states"] = list(requests.values())
        super().send_states(requests)

    def send_mapping(self, sessions):
        self.sent["mapping"] = list(sessions)
        super().send_mapping(sessions)


@dataclass
class World:
    """Running requests, the device that steps them, and what the test knows of it."""

    kind: type = OneTableBlockManager
    device: torch.device = CPU
    running: dict[Request, InferenceSession] = field(default_factory=dict)
    known: list[InferenceSession] = field(default_factory=list)  # whom the device has in a slot
    mapped: list[InferenceSession] | None = None
    made: int = 0

    def __post_init__(self) -> None:
        self.manager = make_manager(
            self.kind, block_size=2, max_blocks_per_layer=400, max_blocks_per_seq=40, device=self.device
        )
        for _ in range(3):
            self.manager.allocate_block(0, start=0)  # so that a block's id is not its place in every layer
        self.slots = SpiedSlots(self.manager, MAX_BATCH)

    @property
    def sessions(self) -> list[InferenceSession]:
        return list(self.running.values())

    def join(self, num_tokens: int, like: int | None, params: SamplingParams) -> InferenceSession:
        """The session of a new request: of `num_tokens` tokens, or sharing all blocks with another one."""
        self.made += 1
        request = Request(self.made, (1, 2, 3), params)
        request.output_token_ids += [self.made * 100 + i for i in range(1 + num_tokens % 3)]
        if like is not None and self.running:
            session = self.sessions[like % len(self.running)].fork()
        else:
            session = InferenceSession(self.manager)
            session.append_prompt(*(t.to(self.device) for t in kv_numbers(self.manager, 0, num_tokens)))
        self.running[request] = session
        return session

    def leave(self, which: int) -> None:
        self.running.pop(list(self.running)[which % len(self.running)]).release()

    def update(self) -> None:
        """Reserve and tell the device: it then knows all, and was sent what it could not know and no more."""
        before = [[row_of(s, i) for i in range(self.manager.num_tables)] for s in self.sessions]
        changed = reserve(self.sessions)
        after = [[row_of(s, i) for i in range(self.manager.num_tables)] for s in self.sessions]
        self.slots.sent = {}
        sessions = self.sessions
        self.slots.update(list(self.running), sessions, changed)
        self.slots.deliver()
        joined = [s for s in sessions if s not in self.known]
        dirty = [s for s, b, a in zip(sessions, before, after, strict=True) if s in joined or b != a]
        expected = {"rows": dirty, "states": joined}
        if sessions != self.mapped:
            expected["mapping"] = sessions
        expected = {what: whom for what, whom in expected.items() if whom}
        copies = self.slots.sent.pop("copies", [])
        assert self.slots.sent == expected
        assert len(copies) == bool(expected)
        self.known, self.mapped = sessions, sessions
        assert len(self.slots.slot_of) == len(sessions)
        assert sorted([*self.slots._free, *self.slots.slot_of.values()]) == list(range(MAX_BATCH))

    def compute(self) -> None:
        """What a step does on the device: everybody in a slot moves on."""
        slots, mapping = self.slots, self.slots.slot_mapping[: len(self.running)]
        self.made += 1
        token_ids = torch.arange(len(mapping), device=mapping.device) + self.made * 1000
        slots.last_token_ids[mapping] = token_ids
        slots.context_lens[mapping] += 1
        if not all(r.params.is_greedy for r in self.running):
            slots.sampling_state.draws[mapping] += 1

    def step(self, fails: str | None = None) -> None:
        """fails: None, or "before" or "after" the device has done its work."""
        if not self.running:
            return
        self.update()
        assert_device_knows(self.slots, self.running)
        if fails != "before":
            self.compute()
        if fails:
            self.slots.forget(self.sessions)
            self.known, self.mapped = [], None
            for session in self.sessions:
                session.roll_back()
            return
        for b, (request, session) in enumerate(self.running.items()):
            session.num_tokens += 1
            request.output_token_ids.append(self.made * 1000 + b)


MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("join"),
            st.integers(0, 9),
            st.none() | st.integers(0, 9),
            st.sampled_from(PARAMS),
        ),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("reorder"), st.integers(0, 9)),
        st.tuples(st.just("step")),
        st.tuples(st.just("step")),
        st.tuples(st.just("fail"), st.sampled_from(["before", "after"])),
    ),
    max_size=40,
)
SOME_RUN = [("join", 3, None, PARAMS[1]), ("join", 5, 0, PARAMS[0]), ("step",)]


def play(world: World, moves: list[tuple]) -> None:
    for what, *how in moves:
        if what == "join" and len(world.running) < MAX_BATCH:
            world.join(*how)
        elif what == "leave" and world.running:
            world.leave(*how)
        elif what == "reorder" and world.running:
            which = how[0] % len(world.running)
            running = list(world.running.items())
            world.running = dict(running[which:] + running[:which])
        elif what == "step":
            world.step()
        elif what == "fail":
            world.step(fails=how[0])


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("device", [CPU, pytest.param(CUDA, marks=pytest.mark.cuda)], ids=str)
@given(moves=MOVES)
@settings(max_examples=150)
def test_after_any_history_the_device_knows_what_the_sessions_say_and_was_sent_no_more(kind, device, moves):
    play(World(kind, device=device), [*SOME_RUN, *moves, ("step",)])


@pytest.mark.parametrize("table_idx", [0, 1])
def test_a_list_that_changed_in_any_one_table_is_sent(table_idx):
    world = World(MutableInfoBlockManager)
    sessions = [world.join(3, None, PARAMS[0]) for _ in range(3)]
    world.step()
    world.step()
    world.slots.sent = {}
    changed = [[], []]
    changed[table_idx] = [1]
    world.slots.update(list(world.running), world.sessions, changed)
    world.slots.deliver()
    world.slots.sent.pop("copies")
    assert world.slots.sent == {"rows": [sessions[1]]}


@kinds
@pytest.mark.parametrize("fails", ["send_mapping", "send_states", "send_rows", "deliver"])
def test_after_a_follow_that_failed_and_a_forget_the_device_is_told_all(kind, fails, monkeypatch):
    def boom(*_):
        raise KeyboardInterrupt

    world = World(kind)
    world.join(4, None, PARAMS[1])
    world.step()
    world.join(3, None, PARAMS[2])
    with monkeypatch.context() as patch:
        patch.setattr(world.slots, fails, boom)
        with pytest.raises(KeyboardInterrupt):
            world.slots.update(list(world.running), world.sessions, reserve(world.sessions))
            world.slots.deliver()
    world.slots.discard()
    world.slots.forget(world.sessions)
    world.known, world.mapped = [], None
    for session in world.sessions:
        session.roll_back()
    for _ in range(3):
        world.step()


@kinds
def test_before_anybody_joins_every_row_is_padding(kind):
    slots = World(kind).slots
    assert slots.slot_mapping.tolist() == [slots.padding_slot] * MAX_BATCH
    assert slots.context_lens[slots.padding_slot] == -1
    assert not slots.block_tables.any()
    assert slots.sampling_state.temperatures[slots.padding_slot] == 0  # so that nothing is drawn for it
    num_tables = slots.block_tables.shape[0]
    assert num_tables == (1 if kind is OneTableBlockManager else 2)


def test_what_was_put_to_a_tensor_before_is_written_first():
    memory = SlotMemory({"rows": ((3,), torch.int64)}, 12, CPU)
    memory.put("rows", np.array([0, 1]), np.array([5, 6]))
    memory.put("rows", np.array([1]), np.array([7]))
    memory.write()
    assert memory["rows"].tolist() == [5, 7, 0]
