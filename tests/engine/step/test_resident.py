"""The decode step whose state lives on the device: room made first, one table for all, failures, graphs."""

import gc
import random
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from helpers import (
    CONFIG,
    ENGINES,
    GREEDY,
    SEEDED,
    Boom,
    assert_no_block_is_lost,
    books,
    failing,
    holds,
    kv_numbers,
    make_engine,
    make_manager,
    run,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from labkit import LADDER, CacheConfig, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine import InferenceSession
from labkit.engine.step import graphed
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep, batch_buckets, garbage_collected_before
from labkit.engine.step.resident import Launched
from labkit.engine.step.staging import Arriving
from labkit.errors import OptionError, OutOfBlocksError
from labkit.kernels import triton_status
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager, PrefixCache
from labkit.ladder import CUDA_GRAPHS, DEVICE_RESIDENT_STATE, ONE_TABLE

RUNG_00 = LADDER["00"].options
NAMES = {options: name for name, options in ENGINES.items()}  # some have two
ALL_RESIDENT = {name: options for options, name in NAMES.items() if options.block_tables == "resident"}
# Those that read a step's tokens before the next one: after each step, host and device agree.
RESIDENT = {name: options for name, options in ALL_RESIDENT.items() if options.readback == "at_once"}
FUSED_WRITE = {name: options for name, options in ALL_RESIDENT.items() if options.kv_write == "fused"}
resident = pytest.mark.parametrize("options", RESIDENT.values(), ids=RESIDENT)
all_resident = pytest.mark.parametrize("options", ALL_RESIDENT.values(), ids=ALL_RESIDENT)
kinds = pytest.mark.parametrize("kind", [MutableInfoBlockManager, OneTableBlockManager])
needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)


def prompted(manager, first, num_tokens):
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, first, num_tokens))
    return session


def reserve(*sessions):
    """Room for one more token behind each; which lists changed, in each table. Nobody counts it yet."""
    manager = sessions[0].kv_manager
    return [
        manager.reserve_token_batch(i, [s.block_ids_per_layer[i] for s in sessions])
        for i in range(manager.num_tables)
    ]


def count(*sessions):
    for session in sessions:
        session.num_tokens += 1


# --- room for a token, before there is one ---------------------------------------------------------


@kinds
def test_room_is_made_in_place_behind_a_boundary_and_in_a_copy(kind):
    manager = make_manager(kind)
    in_place, full, alone, empty = (prompted(manager, 100 * i, n) for i, n in enumerate((3, 4, 6, 0)))
    other = alone.fork()
    bytes_before = manager.k_cache.clone(), manager.v_cache.clone()
    before = [list(s.block_ids_per_layer[-1]) for s in (in_place, full, alone, other, empty)]
    changed = reserve(in_place, full, alone, other, empty)
    assert changed == [[1, 2, 4]] * manager.num_tables
    after = [s.block_ids_per_layer[-1] for s in (in_place, full, alone, other, empty)]
    assert after[0] == before[0] and after[3] == before[3]  # the last holder of a block keeps it
    assert after[1][:-1] == before[1] and after[2][:-1] == before[2][:-1]
    assert after[2][-1] not in before[2]
    lengths = [[manager.info(i).length for i in ids] for ids in after]
    assert lengths == [[4], [4, 1], [4, 3], [4, 3], [1]]
    assert [manager.info(ids[-1]).start for ids in after] == [0, 4, 4, 4, 0]
    paths = {
        name: n * manager.num_tables for name, n in [("boundary", 1), ("copy_on_write", 1), ("first", 1)]
    }
    assert manager.append_paths == paths | {"in_place": 2 * manager.num_tables}
    count(in_place, full, alone, other, empty)
    manager.check_integrity([in_place, full, alone, other, empty])
    # Of bytes, only the copy's are new: the two tokens that its block had.
    copy = manager.info(after[2][-1]).block_index
    for cache, was in zip((manager.k_cache, manager.v_cache), bytes_before, strict=True):
        different = (cache != was).flatten(2).any(dim=2)  # [L, N]
        assert {n for _, n in different.nonzero().tolist()} <= {copy} | {
            manager.info(s.block_ids_per_layer[0][-1]).block_index for s in (alone,)
        }
    for session in (alone, other):
        keys, _ = session.dense_kv()
        expected, _ = kv_numbers(manager, 200, 6)
        assert torch.equal(keys[:, :, :6], expected)


@kinds
def test_a_full_block_that_others_hold_is_not_copied(kind):
    manager = make_manager(kind)
    first = prompted(manager, 0, 4)
    second = first.fork()
    assert reserve(first, second) == [[0, 1]] * manager.num_tables
    assert manager.append_paths == {"boundary": 2 * manager.num_tables, "in_place": 0}
    assert manager.refcount(first.block_ids_per_layer[0][0]) == 2
    count(first, second)
    manager.check_integrity([first, second])


@kinds
def test_a_prompt_that_is_kept_is_copied_once_and_then_grown_in_place(kind):
    manager = make_manager(kind)
    session = prompted(manager, 0, 5)
    cache = PrefixCache(manager, 2)
    cache.insert((1, 2, 3, 4, 5), session.block_ids_per_layer, torch.zeros(1))
    changed = []
    for _ in range(4):
        changed.append(reserve(session))
        count(session)
        manager.check_integrity([session, *cache])
    yes, no = [[0]] * manager.num_tables, [[]] * manager.num_tables
    assert changed == [yes, no, no, yes]  # the copy, and the next block


@kinds
def test_no_rows_is_no_change(kind):
    manager = make_manager(kind)
    assert manager.reserve_token_batch(0, []) == []
    assert manager.num_free_blocks == 8


@pytest.mark.slow
@given(
    block_size=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    forked=st.lists(st.integers(0, 9), max_size=4),
    data=st.data(),
)
def test_what_is_booked_is_what_an_append_books(block_size, lengths, forked, data):
    """Rung 05's books: the same blocks of the same lengths, whoever shares them, and the same changes."""
    sizes = {"block_size": block_size, "max_blocks_per_layer": 80}
    managers = [make_manager(MutableInfoBlockManager, **sizes) for _ in range(2)]
    each = []
    for manager in managers:
        sessions = [prompted(manager, 100 * i, length) for i, length in enumerate(lengths)]
        for which in forked:
            sessions.append(sessions[which % len(sessions)].fork())
        each.append(sessions)
    batches = st.lists(st.integers(0, len(each[0]) - 1), min_size=1, unique=True)
    for batch in data.draw(st.lists(batches, min_size=1, max_size=4)):
        appended, reserved = ([sessions[i] for i in batch] for sessions in each)
        before = [[list(ids) for ids in s.block_ids_per_layer] for s in reserved]
        new = torch.zeros(len(batch), 2, 3)
        for layer_idx in range(2):
            ids = [s.block_ids_per_layer[layer_idx] for s in appended]
            managers[0].append_token_batch(layer_idx, ids, new, new)
        changed = reserve(*reserved)
        for layer_idx in range(2):
            now = [s.block_ids_per_layer[layer_idx] for s in reserved]
            was = [ids[layer_idx] for ids in before]
            assert changed[layer_idx] == [b for b in range(len(batch)) if now[b] != was[b]]
        count(*appended, *reserved)
    expected, actual = (books(manager) for manager in managers)
    del expected["append_paths"]["indexed"]
    assert actual == expected
    managers[1].check_integrity(each[1])


@pytest.mark.slow
@kinds
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4), num_forks=st.integers(0, 2), data=st.data()
)
def test_where_blocks_run_out_all_is_as_before_once_it_is_cut_back(kind, lengths, num_forks, data):
    """In whichever table and for whichever request; a private copy of a shared block may stay."""
    manager = make_manager(kind, max_blocks_per_layer=30)
    sessions = [prompted(manager, 100 * i, length) for i, length in enumerate(lengths)]
    sessions += [sessions[i % len(sessions)].fork() for i in range(num_forks)]
    taken = sum(s.next_token_takes_block for s in sessions) * manager.num_tables
    if not taken:
        return
    held = [s.dense_kv() for s in sessions]
    at_call = data.draw(st.integers(0, max(0, taken - 1 - num_forks * manager.num_tables)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "allocate_block", failing(manager.allocate_block, at_call, OutOfBlocksError))
        with pytest.raises(OutOfBlocksError):
            reserve(*sessions)
    for session in sessions:
        session.roll_back()
    manager.check_integrity(sessions)
    for session, kv in zip(sessions, held, strict=True):
        assert all(map(torch.equal, session.dense_kv(), kv))
    reserve(*sessions)
    count(*sessions)
    manager.check_integrity(sessions)


@kinds
def test_the_pool_that_is_used_up_says_so_and_gives_nothing_away(kind):
    manager = make_manager(kind, max_blocks_per_layer=3)
    sessions = [prompted(manager, 0, 4), prompted(manager, 50, 4)]
    with pytest.raises(OutOfBlocksError, match="no free block: all 3 blocks of 4 tokens are in use"):
        reserve(*sessions)
    for session in sessions:
        session.roll_back()
    manager.check_integrity(sessions)
    assert manager.num_free_blocks == 1
    assert holds(sessions[0], (0, 4)) and holds(sessions[1], (50, 4))


# --- one table for all layers ----------------------------------------------------------------------


def test_a_block_is_taken_once_for_all_layers():
    one, per_layer = (
        make_manager(kind, num_layers=3) for kind in (OneTableBlockManager, MutableInfoBlockManager)
    )
    sessions = [prompted(manager, 0, 10) for manager in (one, per_layer)]
    assert one.num_tables == 1 and per_layer.num_tables == 3
    assert sessions[0].block_ids_per_layer == [[0, 1, 2]]
    assert sessions[1].block_ids_per_layer == [[0, 1, 2], [8, 9, 10], [16, 17, 18]]
    assert one.num_free_blocks == per_layer.num_free_blocks == 5
    assert one.k_cache.shape == per_layer.k_cache.shape  # the memory is the same; the books are a third
    assert [one.info(i).length for i in range(3)] == [4, 4, 2]
    assert torch.equal(one.k_cache, per_layer.k_cache) and torch.equal(one.v_cache, per_layer.v_cache)
    sessions[0].release()
    assert one.num_free_blocks == 8
    one.check_integrity([])


@given(
    block_size=st.integers(1, 9), first=st.integers(1, 20), second=st.integers(0, 20), is_shared=st.booleans()
)
def test_a_prompt_in_pieces_is_in_every_layer_the_prompt_in_one(block_size, first, second, is_shared):
    manager = make_manager(OneTableBlockManager, num_layers=3, block_size=block_size, max_blocks_per_layer=60)
    session = prompted(manager, 0, first)
    holders = [session, session.fork()] if is_shared else [session]
    session.append_prompt(*kv_numbers(manager, first, second))
    assert holds(session, (0, first + second))
    assert all(holds(other, (0, first)) for other in holders[1:])
    manager.check_integrity(holders)


def test_a_prompt_onto_a_shared_tail_copies_it_in_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    first = prompted(manager, 0, 6)
    second = first.fork()
    second.append_prompt(*kv_numbers(manager, 100, 7))
    assert second.block_ids_per_layer == [[0, 2, 3, 4]]
    assert holds(first, (0, 6)) and holds(second, (0, 6), (100, 7))
    manager.check_integrity([first, second])


def test_a_copy_on_write_copies_the_bytes_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    first = prompted(manager, 7, 6)
    second = first.fork()
    assert reserve(first) == [[0]]
    old, new = second.block_ids_per_layer[0][-1], first.block_ids_per_layer[0][-1]
    assert (old, new) == (1, 2)
    for cache in (manager.k_cache, manager.v_cache):
        for layer in cache:
            assert torch.equal(layer[new], layer[old])
            assert layer[new][:, :2].any()
    assert not any(torch.equal(manager.k_cache[0, new], manager.k_cache[i, new]) for i in (1, 2))
    assert [manager.refcount(i) for i in (0, 1, 2)] == [2, 1, 1]
    manager.k_cache[:, new, :, 2:], manager.v_cache[:, new, :, 2:] = -1, -1  # what a step will write
    count(first)
    assert holds(second, (7, 6))
    manager.check_integrity([first, second])


@pytest.mark.parametrize("which", ["k_cache", "v_cache"])
def test_a_copy_that_fails_leaves_the_sharers_as_they_were(which):
    manager = make_manager(OneTableBlockManager)
    first = prompted(manager, 0, 6)
    second = first.fork()
    cache = getattr(manager, which)
    setattr(manager, which, None)
    with pytest.raises(TypeError):
        reserve(first)
    setattr(manager, which, cache)
    manager.check_integrity([first, second])
    assert manager.num_free_blocks == 6
    assert holds(first, (0, 6)) and holds(second, (0, 6))


def test_live_slots_are_those_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    prompted(manager, 0, 6)
    live = manager.live_slots()
    assert live.shape == (3, 8, 4)
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[0] = expected[1, :2] = True
    assert all(torch.equal(layer, expected) for layer in live)


def test_each_layers_keys_and_values_are_its_own():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    session = prompted(manager, 0, 6)
    keys, values = kv_numbers(manager, 0, 6)
    for layer_idx in range(3):
        k, v = manager.dense_kv(layer_idx, session.block_ids_per_layer[0])
        assert torch.equal(k, keys[layer_idx]) and torch.equal(v, values[layer_idx])


def test_a_cached_prompt_is_held_in_one_list():
    manager = make_manager(OneTableBlockManager)
    session = prompted(manager, 0, 6)
    cache = PrefixCache(manager, 1)
    cache.insert((1, 2, 3, 4, 5, 6), session.block_ids_per_layer, torch.zeros(1))
    manager.check_integrity([session, *cache])
    session.release()
    again = InferenceSession(manager, cache.lookup((1, 2, 3, 4, 5, 6, 7)))
    assert again.num_tokens == 6 and again.block_ids_per_layer == [[0, 1]]
    assert holds(again, (0, 6))
    again.release()
    cache.clear()
    assert manager.num_free_blocks == 8
    manager.check_integrity([])


def leak_a_block(manager, session):
    manager.allocate_block(0, start=0)


def lose_a_reference(manager, session):
    manager.block_refcounts[1] = 2


def reserve_and_forget(manager, session):
    reserve(session)


def free_a_held_block(manager, session):
    manager.deallocate_block(1)


def free_a_block_in_use(manager, session):
    manager._freed[0].append(1)


def hold_a_block_too_few(manager, session):
    manager.deallocate_block(session.block_ids_per_layer[0].pop())


def hold_blocks_in_the_wrong_order(manager, session):
    session.block_ids_per_layer[0].reverse()


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (leak_a_block, r"reference counts differ from holders \(block: booked, held\): {2: \(1, 0\)}"),
        (lose_a_reference, r"reference counts differ .* {1: \(2, 1\)}"),
        (reserve_and_forget, r"block 1 is booked as .*length=3\), but its holder needs .*length=2\)"),
        (free_a_held_block, "block 1 is held but not allocated"),
        (free_a_block_in_use, r"layer 0: used \[0, 1\] and freed \[1\] blocks do not make up the 2"),
        (hold_a_block_too_few, "6 tokens in layer 0 are held in 1 blocks"),
        (hold_blocks_in_the_wrong_order, "block 1 is booked as .*start=4.* but its holder needs .*start=0"),
    ],
)
def test_check_integrity_names_what_is_off_in_the_one_table(plant, message):
    manager = make_manager(OneTableBlockManager)
    session = prompted(manager, 0, 6)
    manager.check_integrity([session])
    plant(manager, session)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity([session])


# --- a step that fails -----------------------------------------------------------------------------

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, SEEDED, GREEDY]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]
PLACES = {  # where a step can fail, and in which of its calls
    "telling the device who runs": (lambda step: step.slots, "send_mapping", 0),
    "attention in the first layer": (lambda step: step.launcher.attention, "attention", 0),
    "attention in the second layer": (lambda step: step.launcher.attention, "attention", 1),
    "when the device has done it all": (lambda step: step.pinned_readback, "start", 0),
    "reading the tokens": (lambda step: Arriving, "read", 0),
}


def held_by(engine):
    """Each running request's tokens and bytes in the cache, and the free blocks."""
    return engine.stats().free_blocks, {
        r.request_id: (r.session.num_tokens, [kv.tolist() for kv in r.session.dense_kv()], list(r.token_ids))
        for r in engine.scheduler.running
    }


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@resident
def test_a_step_that_fails_leaves_everything_as_if_it_had_not_been(monkeypatch, options, place, times):
    """Also when the device is ahead of the host by then, and when the next attempts fail like the first."""
    engine = make_engine(options=options, prefix_cache=False)
    request_ids = [engine.add_request(*each) for each in zip(PROMPTS[:3], EACH_PARAMS, strict=False)]
    outputs = engine.step() + engine.step()
    request_ids += [engine.add_request(*each) for each in zip(PROMPTS[3:], EACH_PARAMS[3:], strict=True)]
    outputs += engine.step()  # they join: the next step has another batch
    before = held_by(engine)
    owner, name, at_call = PLACES[place]
    owner = owner(engine.decode_step)
    for _ in range(times):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing(getattr(owner, name), at_call))
            with pytest.raises(Boom):
                engine.step()
        engine.check_integrity()
        assert held_by(engine) == before
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in request_ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["attention in the second layer", "reading the tokens"])
@all_resident
def test_a_failed_step_in_which_blocks_were_copied_spoils_no_sharer(monkeypatch, options, place):
    """Three requests of one prompt that is also kept: their last block is shared by four."""
    # decode_first: no step is launched behind the prefill
    engine = make_engine(options=options, decode_first=True)
    engine.generate([PROMPTS[0]], SamplingParams(1))
    request_ids = [engine.add_request(PROMPTS[0], params) for params in (GREEDY, SEEDED, GREEDY)]
    outputs = engine.step()
    _, before = held_by(engine)
    owner, name, at_call = PLACES[place]
    owner = owner(engine.decode_step)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        with pytest.raises(Boom):
            engine.step()
    engine.check_integrity()
    assert held_by(engine)[1] == before
    handed_out = tokens_by_request(outputs + run(engine))
    expected = [tokens_alone(PROMPTS[0], params) for params in (GREEDY, SEEDED, GREEDY)]
    assert [handed_out[i] for i in request_ids] == expected
    assert tokens_of(engine.generate([PROMPTS[0]], GREEDY)) == [tokens_alone(PROMPTS[0], GREEDY)]
    assert_no_block_is_lost(engine)


@resident
def test_a_launch_counts_a_token_and_its_reading_gives_it(options):
    engine = make_engine(options=options, prefix_cache=False)
    for each in zip(PROMPTS[:3], EACH_PARAMS, strict=False):
        engine.add_request(*each)
    engine.step()
    running = list(engine.scheduler.running)
    lengths = [r.session.num_tokens for r in running]
    launched = engine.decode_step.launch(running)
    assert isinstance(launched, Launched)
    assert list(launched.requests) == running
    assert [r.session.num_tokens for r in running] == [n + 1 for n in lengths]
    engine.check_integrity()
    assert launched.read() == [tokens[1] for tokens in EXPECTED[:3]]


@resident
def test_a_launch_that_is_cancelled_takes_the_token_back_and_the_next_makes_it_again(monkeypatch, options):
    engine = make_engine(options=options, prefix_cache=False)
    for each in zip(PROMPTS[:3], EACH_PARAMS, strict=False):
        engine.add_request(*each)
    engine.step()
    running, before = list(engine.scheduler.running), held_by(engine)
    launched = engine.decode_step.launch(running)
    with monkeypatch.context() as patch:
        patch.setattr(Arriving, "read", failing(Arriving.read))
        with pytest.raises(Boom):
            launched.read()
    launched.cancel()
    engine.check_integrity()
    assert held_by(engine) == before
    assert engine.decode_step.launch(running).read() == [tokens[1] for tokens in EXPECTED[:3]]


# --- whoever is in the batch -----------------------------------------------------------------------


class Recorder:
    """Stands for a launcher and notes what it was asked for."""

    def __init__(self, engine):
        self.engine, self.launcher = engine, engine.decode_step.launcher
        self.calls = []
        engine.decode_step.launcher = self

    def __call__(self, batch_size, max_context_len, is_greedy):
        running = self.engine.scheduler.running
        assert batch_size == len(running)
        assert max_context_len >= max(r.session.num_tokens for r in running)
        self.calls.append((batch_size, is_greedy))
        return self.launcher(batch_size, max_context_len, is_greedy)


@resident
def test_a_batch_goes_from_greedy_to_drawn_and_back_and_nobody_notices(options):
    engine = make_engine(options=options, max_batch_size=4, decode_first=True)
    recorder = Recorder(engine)
    long = SamplingParams(max_new_tokens=16)
    drawn = [replace(SEEDED, max_new_tokens=n, seed=n) for n in (3, 4, 6)]
    schedule = {0: [long, GREEDY], 3: drawn[:1], 8: [GREEDY], 10: drawn[1:]}
    requests, outputs = {}, []
    for step in range(30):
        for i, params in enumerate(schedule.get(step, ())):
            prompt = PROMPTS[(step + i) % len(PROMPTS)]
            requests[engine.add_request(prompt, params)] = prompt, params
        outputs += engine.step()
        engine.check_integrity()
    assert not engine.has_work
    handed_out = tokens_by_request(outputs)
    assert handed_out == {i: tokens_alone(*each) for i, each in requests.items()}
    modes = [is_greedy for _, is_greedy in recorder.calls]
    changes = [mode for i, mode in enumerate(modes) if i == 0 or mode != modes[i - 1]]
    assert changes[:4] == [True, False, True, False]
    assert {size for size, _ in recorder.calls} >= {1, 2, 3, 4}


@pytest.mark.slow
@all_resident
def test_requests_that_join_while_others_run_get_the_tokens_of_rung_00(options):
    """Twelve requests for three slots: each step somebody may leave, join, or be preempted."""
    each = [
        (PROMPTS[i % 5], replace(SEEDED if i % 3 else GREEDY, max_new_tokens=4 + i % 7, seed=i))
        for i in range(12)
    ]
    engine = make_engine(
        options=options, max_batch_size=3, decode_first=True, prefix_cache=False, max_blocks_per_layer=6
    )
    outputs, ids = [], []
    for prompt, params in each:
        ids.append(engine.add_request(prompt, params))
        outputs += engine.step()
        engine.check_integrity()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == [tokens_alone(*e) for e in each]
    assert engine.stats().counters.preemptions > 0
    assert_no_block_is_lost(engine)


EXTREME = [
    SamplingParams(6, temperature=1e-300, seed=1),
    SamplingParams(6, temperature=10**300, seed=2),
    SamplingParams(6, temperature=1, top_k=10**30, seed=-1),
    SamplingParams(6, temperature=3.0, top_k=2, top_p=5e-324, seed=2**64 - 1),
    SamplingParams(6, temperature=2, top_p=1, seed=-(2**70)),
    SamplingParams(6, temperature=0, top_k=3, top_p=0.5, seed=5),
    SamplingParams(6, temperature=1.5),  # a seed of its own
]


@all_resident
def test_parameters_of_any_size_mean_on_the_device_what_they_mean_on_the_host(options):
    made = []
    for each in (RUNG_00, options):
        random.seed(0)  # of which seeds come that are not given
        made.append(tokens_of(make_engine(options=each).generate([PROMPTS[1]] * len(EXTREME), EXTREME)))
    assert made[0] == made[1]
    assert len(set(made[0])) > 3


@resident
def test_each_slot_moves_on_with_its_session(options):
    """After every decode step: length, last token and random numbers drawn, on the device as on the host."""
    engine = make_engine(options=options, max_batch_size=4, prefix_cache=False)
    slots = engine.decode_step.slots
    for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True):
        engine.add_request(prompt, params)
    num_compared = 0
    while engine.has_work:
        engine.step()
        for request in engine.scheduler.running:
            if (slot := slots.slot_of.get(request.session)) is None:
                continue  # its prefill was this step
            assert slots.context_lens[slot] == request.session.num_tokens
            assert slots.last_token_ids[slot] == request.output_token_ids[-1]
            if not request.params.is_greedy:
                assert slots.draws[slot] == len(request.output_token_ids)
            num_compared += 1
        assert slots.context_lens[slots.nobody] == -1
    assert num_compared > 20


@all_resident
def test_every_layers_writes_are_counted(options):
    engine = make_engine(options=options, max_batch_size=4, prefix_cache=False)
    engine.generate(PROMPTS, EACH_PARAMS)
    stats = engine.stats()
    assert stats.append_paths[options.kv_write] == stats.counters.decode_steps * CONFIG.n_layer
    taken = sum(stats.append_paths[path] for path in ("in_place", "boundary"))
    assert taken == stats.counters.decoded_tokens * engine.kv_manager.num_tables


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("num_made", [1, 4])
@resident
def test_a_request_whose_logits_are_no_numbers_ends_alone(options, num_made, broken):
    """Its keys are broken, not its tokens; its blocks are used again, with what is in them."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=9, block_size=4)
    params = [GREEDY, SEEDED, GREEDY]
    request_ids = [engine.add_request(*each) for each in zip(PROMPTS[:3], params, strict=True)]
    outputs = []
    for _ in range(num_made):
        outputs += engine.step()
    session = engine.scheduler.running[broken].session
    for layer, ids in enumerate(session.block_ids_per_layer):
        block = engine.kv_manager.info(ids[-1]).block_index
        engine.kv_manager.k_cache[engine.kv_manager.layers_of(layer), block] = torch.nan
    outputs += run(engine)
    completions = {o.request_id: o.completion for o in outputs if o.completion}
    failed = completions.pop(request_ids[broken])
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "the model's logits are not finite numbers"
    assert failed.token_ids == EXPECTED[broken][:num_made]
    others = [i for i in range(3) if i != broken]
    assert [completions[request_ids[i]].token_ids for i in others] == [EXPECTED[i] for i in others]
    assert_no_block_is_lost(engine)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


@all_resident
def test_what_lies_in_slots_that_no_token_is_in_is_never_read(options):
    engine = make_engine(options=options)
    engine.kv_manager.k_cache.fill_(torch.nan)
    engine.kv_manager.v_cache.fill_(torch.inf)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert engine.kv_manager.k_cache.isnan().any()


@pytest.mark.slow
@needs_triton
@all_resident
def test_with_triton_attention_in_the_interpreter_the_tokens_are_those_of_rung_00(options):
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU here")
    params = [replace(each, max_new_tokens=4) for each in (GREEDY, SEEDED)]
    engine = make_engine(options=replace(options, attention="triton"))
    prompts = [PROMPTS[1], PROMPTS[0]]  # the first meets a boundary
    expected = [tokens_alone(*each) for each in zip(prompts, params, strict=True)]
    assert tokens_of(engine.generate(prompts, params)) == expected
    assert_no_block_is_lost(engine)


# --- graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch_size", [*range(1, 70), 96, 97, 128, 200, 256, 1000])
def test_buckets_rise_to_the_largest_batch_and_pad_little(max_batch_size):
    buckets = batch_buckets(max_batch_size)
    assert buckets == sorted(set(buckets))
    assert buckets[0] == 1 and buckets[-1] == max_batch_size
    pairs = list(pairwise(buckets))
    assert all(larger <= 2 * smaller for smaller, larger in pairs)
    assert all(2 * larger <= 3 * smaller for smaller, larger in pairs if smaller >= 16)
    assert set(buckets) >= {size for size in (1, 2, 4, 8) if size <= max_batch_size}
    assert len(buckets) <= 4 + 2 * max_batch_size.bit_length()


@pytest.mark.parametrize(
    ("max_batch_size", "buckets"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9]), (16, [1, 2, 4, 8, 16])],
)
def test_the_buckets_of_small_engines(max_batch_size, buckets):
    assert batch_buckets(max_batch_size) == buckets


def test_without_a_gpu_graphs_are_the_step_itself():
    engine = make_engine(options=CUDA_GRAPHS)
    assert type(engine.decode_step.launcher) is DeviceStep
    plain = make_engine(options=replace(CUDA_GRAPHS, attention="plain"))
    assert type(plain.decode_step.launcher) is DeviceStep
    assert tokens_of(plain.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


class FakeGraph:
    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize("max_batch_size", [1, 7, 20])
def test_a_step_takes_the_next_larger_graph_and_its_first_tokens(max_batch_size, is_greedy):
    step = object.__new__(GraphedStep)  # which captures nothing, as there is no GPU
    step.buckets = batch_buckets(max_batch_size)
    step.graphs = {
        (bucket, greedy): (FakeGraph(), torch.arange(bucket) + 100 * bucket + 10_000 * greedy)
        for bucket in step.buckets
        for greedy in (True, False)
    }
    for batch_size in range(1, max_batch_size + 1):
        bucket = min(b for b in step.buckets if b >= batch_size)
        before = {key: graph.replays for key, (graph, _) in step.graphs.items()}
        tokens = step(batch_size, 5, is_greedy)
        assert tokens.tolist() == [i + 100 * bucket + 10_000 * is_greedy for i in range(batch_size)]
        after = {key: graph.replays for key, (graph, _) in step.graphs.items()}
        assert after == before | {(bucket, is_greedy): before[bucket, is_greedy] + 1}


class FakeCuda:
    """What `GraphedStep` asks of torch.cuda, counted: while `graph` is open, a graph is being captured."""

    def __init__(self):
        self.is_capturing = False

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"  # another thread may go on with another engine
        self.is_capturing = True
        yield
        self.is_capturing = False

    def memory_reserved(self):
        return 0

    def stream(self, stream):
        return nullcontext()

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream, CUDAGraph = Stream, FakeGraph
    graph_pool_handle = empty_cache = lambda self: None


@pytest.mark.slow
def test_all_graphs_are_captured_when_the_step_is_made_and_none_in_the_middle_of_serving(monkeypatch):
    """Trap 10: two a bucket, each after a run that compiles what there is to compile."""
    cuda, runs = FakeCuda(), []
    stub = SimpleNamespace(
        cuda=cuda,
        _C=SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: None),
        inference_mode=torch.inference_mode,
    )
    monkeypatch.setattr(graphed, "torch", stub)

    def device_step(batch_size, max_context_len, is_greedy):
        runs.append((batch_size, is_greedy, cuda.is_capturing))
        return torch.arange(batch_size)

    device_step.slots = SimpleNamespace(slot_mapping=range(10))
    step = GraphedStep(device_step)
    captured = [(size, greedy) for size, greedy, is_capturing in runs if is_capturing]
    assert sorted(captured) == [(size, greedy) for size in (1, 2, 4, 8, 10) for greedy in (False, True)]
    for size, greedy in captured:
        assert runs.index((size, greedy, False)) < runs.index((size, greedy, True))
    del runs[:]
    for batch_size in range(1, 11):
        for is_greedy in (True, False):
            assert step(batch_size, 64, is_greedy).tolist() == list(range(batch_size))
    assert not runs


def pad_steps(engine: InferenceEngine) -> list[tuple[int, int]]:
    """What graphs do, without graphs: each step is one of the next larger bucket. Batch and bucket, noted."""
    launcher = engine.decode_step.launcher
    buckets = batch_buckets(len(engine.decode_step.slots.slot_mapping))
    noted = []

    def padded(batch_size, max_context_len, is_greedy):
        bucket = next(size for size in buckets if size >= batch_size)
        noted.append((batch_size, bucket))
        return launcher(bucket, max_context_len, is_greedy)[:batch_size]

    engine.decode_step.launcher = padded
    return noted


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["plain", pytest.param("triton", marks=needs_triton)])
@pytest.mark.parametrize("options", FUSED_WRITE.values(), ids=FUSED_WRITE)
def test_padding_a_batch_changes_no_token_and_no_byte_of_anybody(options, attention):
    if attention == "triton" and torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU here")
    engine = make_engine(options=replace(options, attention=attention), max_batch_size=7, prefix_cache=False)
    manager, slots = engine.kv_manager, engine.decode_step.slots
    for cache in (manager.k_cache, manager.v_cache):
        cache.fill_(torch.nan)
    noted = pad_steps(engine)
    n = 3 if attention == "triton" else 8  # tokens: the interpreter takes its time
    params = [replace(each, max_new_tokens=n - max(0, i - 2)) for i, each in enumerate(EACH_PARAMS)]
    ids = [engine.add_request(*each) for each in zip(PROMPTS, params, strict=True)]
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
        live = manager.live_slots()[:, :, None, :, None]
        for cache in (manager.k_cache, manager.v_cache):
            assert not (cache.isnan() & live).any()
            assert cache[:, manager._num_fresh_used[0] :].isnan().all()  # blocks that nobody was given
        assert slots.context_lens[slots.nobody] == -1
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == [tokens_alone(*e) for e in zip(PROMPTS, params, strict=True)]
    assert (5, 7) in noted if attention == "plain" else noted
    assert any(batch < bucket for batch, bucket in noted)


@pytest.mark.parametrize("options", FUSED_WRITE.values(), ids=FUSED_WRITE)
def test_requests_join_and_leave_padded_batches(options):
    each = [
        (PROMPTS[i % 5], replace(SEEDED if i % 3 else GREEDY, max_new_tokens=2 + i % 7, seed=i))
        for i in range(14)
    ]
    engine = make_engine(options=options, max_batch_size=6, decode_first=True, max_blocks_per_layer=14)
    noted = pad_steps(engine)
    outputs, ids = [], []
    for i, e in enumerate(each):
        ids.append(engine.add_request(*e))
        if i % 2:
            outputs += engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == [tokens_alone(*e) for e in each]
    assert {bucket for batch, bucket in noted if batch < bucket} >= {4}
    assert_no_block_is_lost(engine)


# --- on a GPU --------------------------------------------------------------------------------------

TEXTS = ["To be, or not", "O", "The king is", "Romeo, wherefore art thou", "To be", "My lord,", "What"]


def gpu_engine(tiny, options, dtype=torch.float32, block_size=8, **scheduler) -> InferenceEngine:
    """The trained model. Each prompt is prefilled by itself, the same on every rung."""
    return InferenceEngine(
        tiny,
        options,
        device="cuda",
        dtype=dtype,
        cache=CacheConfig(block_size=block_size),
        scheduler=SchedulerConfig(**{"prefill_max_batch_size": 1, **scheduler}),
    )


def workload(tiny, num_requests, is_drawn=False):
    """Prompts, and for each how many tokens: another number each, so that a batch shrinks one by one."""
    prompts = [tiny.tokenizer.encode(TEXTS[i % len(TEXTS)]) for i in range(num_requests)]
    params = [
        SamplingParams(
            6 + 2 * i,
            temperature=0.8 if is_drawn and i % 2 else 0,
            top_k=50 if is_drawn and i % 2 else 0,
            top_p=0.95 if is_drawn and i % 4 == 1 else 1.0,
            seed=i,
            stop_on_eos=False,
        )
        for i in range(num_requests)
    ]
    return prompts, params


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("num_requests", "max_batch_size"), [(3, 8), (5, 5), (7, 7), (13, 20), (21, 40)])
def test_on_a_gpu_graphs_make_the_tokens_of_the_step_itself(tiny, num_requests, max_batch_size, is_drawn):
    """Batches of every size down to one: most are padded."""
    prompts, params = workload(tiny, num_requests, is_drawn)
    made = {}
    for name, options in ("eager", ONE_TABLE), ("graphs", CUDA_GRAPHS):
        engine = gpu_engine(tiny, options, max_batch_size=max_batch_size)
        made[name] = tokens_of(engine.generate(prompts, params))
        assert_no_block_is_lost(engine)
        launcher = engine.decode_step.launcher
        assert type(launcher) is (GraphedStep if name == "graphs" else DeviceStep)
        assert engine.decode_step.slots.context_lens[max_batch_size] == -1
    assert made["graphs"] == made["eager"]
    assert set(range(1, num_requests + 1)) - set(launcher.buckets)  # some were padded


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("max_batch_size", [4, 8])
def test_on_a_gpu_greedy_tokens_of_rungs_06_07_and_08_are_those_of_rung_00(tiny, max_batch_size):
    prompts, params = workload(tiny, 7)
    expected = tokens_of(gpu_engine(tiny, RUNG_00, max_batch_size=max_batch_size).generate(prompts, params))
    for options in (DEVICE_RESIDENT_STATE, ONE_TABLE, CUDA_GRAPHS):
        engine = gpu_engine(tiny, options, max_batch_size=max_batch_size)
        assert tokens_of(engine.generate(prompts, params)) == expected, options
        assert tokens_of(engine.generate(prompts, params)) == expected, options  # from cached prompts
        assert engine.stats().append_paths["copy_on_write"] > 0
        assert_no_block_is_lost(engine)


@pytest.mark.cuda
@needs_triton
@all_resident
def test_on_a_gpu_greedy_tokens_are_those_of_rung_00_while_requests_come_and_are_cancelled(tiny, options):
    def tokens(options):
        engine = gpu_engine(tiny, options, max_batch_size=5, decode_first=True)
        prompts, params = workload(tiny, 9)
        outputs, ids = [], []
        for i, each in enumerate(zip(prompts, params, strict=True)):
            ids.append(engine.add_request(*each))
            outputs += engine.step() + engine.step()
            if i == 6:
                engine.cancel(ids[3])
        handed_out = tokens_by_request(outputs + run(engine))
        return [handed_out[i] for i in ids if i != ids[3]]  # which may have one more or less

    assert tokens(options) == tokens(RUNG_00)


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_graphs_are_captured_when_the_engine_is_made_and_never_again(tiny, monkeypatch):
    """Trap 10."""
    captures = []
    capture_begin = torch.cuda.CUDAGraph.capture_begin

    def noted(graph, *args, **kwargs):
        captures.append(graph)
        return capture_begin(graph, *args, **kwargs)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", noted)
    engine = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=10, block_size=4)
    launcher = engine.decode_step.launcher
    num_captured = len(captures)
    assert num_captured == 2 * len(launcher.buckets)  # for greedy batches and for those that can draw
    prompts, params = workload(tiny, 10, is_drawn=True)
    engine.generate(prompts, params)
    long = SamplingParams(tiny.config.n_positions - len(prompts[0]), stop_on_eos=False)
    engine.generate([prompts[0]], long)  # up to the last position: every block there can be
    assert len(captures) == num_captured


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_graphs_say_what_memory_they_took(tiny):
    launcher = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=8).decode_step.launcher
    assert isinstance(launcher.memory_bytes, int)
    assert 0 < launcher.memory_bytes < 2**32
    assert launcher.capture_seconds > 0
    let_go_of = torch.empty(2**32, dtype=torch.uint8, device="cuda")
    del let_go_of  # PyTorch keeps it, until a capture gives it back to the GPU
    again = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=8).decode_step.launcher
    assert 0 < again.memory_bytes < 2**32


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_capturing_writes_nothing_to_the_cache(tiny):
    engine = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=8)
    assert not engine.kv_manager.k_cache.any() and not engine.kv_manager.v_cache.any()
    slots = engine.decode_step.slots
    assert slots.context_lens.tolist() == [0] * slots.nobody + [-1]
    assert slots.slot_mapping.tolist() == [slots.nobody] * 8


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_two_engines_with_graphs_do_not_disturb_each_other(tiny):
    prompts, params = workload(tiny, 6, is_drawn=True)
    alone = [
        tokens_of(gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=6).generate(p, s))
        for p, s in ((prompts, params), (prompts[::-1], params))
    ]
    engines = [gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=6) for _ in range(2)]
    ids = [
        [engine.add_request(*each) for each in zip(p, params, strict=True)]
        for engine, p in zip(engines, (prompts, prompts[::-1]), strict=True)
    ]
    outputs = [[], []]
    while any(engine.has_work for engine in engines):
        for engine, its_outputs in zip(engines, outputs, strict=True):
            if engine.has_work:
                its_outputs += engine.step()
    for its_outputs, its_ids, expected in zip(outputs, ids, alone, strict=True):
        handed_out = tokens_by_request(its_outputs)
        assert [handed_out[i] for i in its_ids] == expected


@pytest.mark.cuda
def test_on_a_gpu_graphs_of_plain_attention_are_refused(tiny):
    with pytest.raises(OptionError, match=r"launch = 'graph' .* needs attention = 'triton'"):
        gpu_engine(tiny, replace(CUDA_GRAPHS, attention="plain"), max_batch_size=4)
    engine = gpu_engine(tiny, replace(ONE_TABLE, attention="plain"), max_batch_size=4)  # these can run
    assert len(engine.generate([[1, 2, 3]], SamplingParams(4, stop_on_eos=False))[0].token_ids) == 4


class Conversations(TorchFunctionMode):
    """Notes where Python and a tensor's numbers meet: on a GPU, the host waits there."""

    NAMES = ("tensor", "as_tensor", "from_numpy", "item", "tolist", "numpy", "cpu", "__bool__", "__int__")

    def __init__(self):
        super().__init__()
        self.noted = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in self.NAMES:
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "drawn"])
@all_resident
def test_a_launch_in_which_nothing_changes_makes_no_tensor_of_numbers_and_reads_none(options, params):
    """Trap 3, as far as it can be seen without a GPU."""
    engine = make_engine(options=options, block_size=64, prefix_cache=False, decode_first=True)
    for prompt in PROMPTS[:3]:
        engine.add_request(prompt, params)
    engine.step()
    running = list(engine.scheduler.running)
    launched = engine.decode_step.launch(running)  # in this one, everybody joins
    for request, token_id in zip(running, launched.read(), strict=True):
        request.output_token_ids.append(token_id)
    with torch.inference_mode(), Conversations() as conversations:
        launched = engine.decode_step.launch(running)
    assert conversations.noted == []
    assert launched.read() == [tokens_alone(prompt, params)[2] for prompt in PROMPTS[:3]]


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@all_resident
def test_on_a_gpu_a_launch_never_waits_for_the_gpu(tiny, options, is_drawn):
    """Trap 3: not when requests join, not at a boundary, and not when nothing changes."""
    engine = gpu_engine(tiny, options, max_batch_size=4, block_size=4)
    prompts, params = workload(tiny, 3, is_drawn)
    engine.generate(prompts, params)  # all is compiled and loaded by now
    for each in zip(prompts, params, strict=True):
        engine.add_request(*each)
    for _ in prompts:
        engine.step()
    running = list(engine.scheduler.running)
    assert len(running) == 3
    if engine.readback.is_ahead:  # rung 10 has launched a step behind the prefill: its tokens come first
        on_its_way = engine.readback._in_flight
        engine.readback.drop()
        give(on_its_way)
    for _ in range(4):
        torch.cuda.set_sync_debug_mode("error")
        try:
            launched = engine.decode_step.launch(running)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        give(launched)
    assert [list(r.output_token_ids) for r in running] == [
        list(tokens[: len(r.output_token_ids)])
        for r, tokens in zip(
            running, tokens_of(engine_again(tiny, options).generate(prompts, params)), strict=True
        )
    ]


def give(launched) -> None:
    """Each request of a step its token, now that they are here."""
    for request, token_id in zip(launched.requests, launched.read(), strict=True):
        request.output_token_ids.append(token_id)


def engine_again(tiny, options) -> InferenceEngine:
    return gpu_engine(tiny, options, max_batch_size=4, block_size=4)


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(
    "place", ["telling the device who runs", "when the device has done it all", "reading the tokens"]
)
@resident
def test_on_a_gpu_after_a_failed_step_everybody_goes_on(tiny, monkeypatch, options, place):
    prompts, params = workload(tiny, 5, is_drawn=True)
    expected = tokens_of(gpu_engine(tiny, options, max_batch_size=8).generate(prompts, params))
    engine = gpu_engine(tiny, options, max_batch_size=8)
    ids = [engine.add_request(*each) for each in zip(prompts, params, strict=True)]
    outputs = [output for _ in prompts for output in engine.step()]  # one is admitted in a step
    owner, name, at_call = PLACES[place]
    owner = owner(engine.decode_step)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        with pytest.raises(Boom):
            engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == expected
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
@needs_triton
@resident
def test_on_a_gpu_a_request_whose_logits_are_no_numbers_ends_alone(tiny, options):
    prompts, params = workload(tiny, 3)
    expected = tokens_of(gpu_engine(tiny, options, max_batch_size=4).generate(prompts, params))
    engine = gpu_engine(tiny, options, max_batch_size=4)
    ids = [engine.add_request(*each) for each in zip(prompts, params, strict=True)]
    outputs = [output for _ in range(5) for output in engine.step()]
    session, manager = engine.scheduler.running[1].session, engine.kv_manager
    assert all(manager.refcount(table[-1]) == 1 for table in session.block_ids_per_layer)
    for table_idx, block_ids in enumerate(session.block_ids_per_layer):
        block = manager.info(block_ids[-1]).block_index
        manager.k_cache[manager.layers_of(table_idx), block] = torch.nan
    outputs += run(engine)
    completions = {o.request_id: o.completion for o in outputs if o.completion}
    assert completions[ids[1]].finish_reason is FinishReason.ERROR
    assert [completions[ids[i]].token_ids for i in (0, 2)] == [expected[0], expected[2]]


@pytest.mark.cuda
def test_on_a_gpu_graphs_keep_their_workspace_when_others_clear_theirs(tiny):
    """torch.compile's graphs clear the libraries' workspaces; ours must not have lain among them."""
    engine = InferenceEngine(
        tiny, CUDA_GRAPHS, device="cuda", cache=CacheConfig(prefix_cache=False), scheduler=SchedulerConfig(64)
    )
    prompts = [[i + 1, 2, 3] for i in range(64)]
    expected = tokens_of(engine.generate(prompts, GREEDY))
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    garbage = [torch.full((2**24,), torch.nan, device="cuda") for _ in range(4)]
    assert tokens_of(engine.generate(prompts, GREEDY)) == expected
    assert all(part.isnan().all() for part in garbage)  # nor did they write there


@pytest.mark.parametrize(
    ("rung", "launch"),
    [("00", "eager"), ("07", "eager"), ("08", "eager: graphs need a CUDA GPU")],
)
def test_an_engine_says_how_it_launches_and_why_not_by_graphs(rung, launch):
    assert make_engine(options=LADDER[rung].options).stats().launch == launch


@pytest.mark.cuda
def test_on_a_gpu_an_engine_says_that_it_launches_graphs(tiny):
    engine = InferenceEngine(tiny, CUDA_GRAPHS, device="cuda", scheduler=SchedulerConfig(2))
    assert engine.stats().launch == "graph"


@pytest.mark.cuda
def test_on_a_gpu_engines_that_wait_for_garbage_collection_spoil_no_capture(tiny):
    expected = None
    thresholds = gc.get_threshold()
    try:
        for _ in range(3):
            engine = gpu_engine(tiny, CUDA_GRAPHS, max_batch_size=6)
            tokens = tokens_of(engine.generate([[1, 2, 3], [5]], GREEDY))
            assert tokens == (expected or tokens)
            expected = tokens
            cycle = [engine]
            cycle.append(cycle)
            gc.set_threshold(1)  # a collection at nearly every line from now on
            del engine, cycle
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.slow
def test_garbage_is_collected_before_captures_and_not_inside():
    """Whatever the thresholds are, and again afterwards."""
    cycle = Cycle()
    gone = weakref.ref(cycle)
    del cycle
    with garbage_collected_before():
        assert gone() is None and not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage_collected_before():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


class Cycle:
    """An object that only a garbage collection finds."""

    def __init__(self):
        self.me = self
