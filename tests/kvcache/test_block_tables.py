"""Block tables: each row leads to its session's tokens, in every layer; a kept row is not stale."""

import pytest
import torch
from helpers import append_tokens, kv_numbers, make_manager
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine import InferenceSession
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.watch import OperatorCounter

kinds = pytest.mark.parametrize("kind", [RebuiltBlockTables, CachedBlockTables])


def sessions_of(manager, *lengths):
    """Sessions of these many tokens; layer 1 starts one block later than layer 0, so their ids differ."""
    manager.append_token(1, [], torch.zeros(2, 3), torch.zeros(2, 3))
    sessions = [InferenceSession(manager) for _ in lengths]
    for session, length in zip(sessions, lengths, strict=True):
        append_tokens(session, first=0, num_tokens=length)
    return sessions


MOVES = st.lists(
    st.tuples(st.sampled_from(["new", "append", "fork", "free", "cut", "build"]), st.integers(0, 9)),
    max_size=80,
)


def play(manager, moves):
    """Make each move; after it: the number of each token that each session holds, the move, its session."""
    (session,) = sessions_of(manager, 1)
    tokens = {session: [0]}
    for count, (move, which) in enumerate(moves, start=1):
        session = list(tokens)[which % len(tokens)]
        if move == "new":
            session = InferenceSession(manager)
            tokens[session] = []
        elif move == "fork":
            child = session.fork()
            tokens[child] = list(tokens[session])
        elif move == "cut":
            kept = session.num_tokens // 2
            tail = session.block_ids_per_layer[0][kept // manager.block_size :]
            if any(manager.refcount(i) > 1 for i in tail):
                continue  # what others see cannot be cut
            session.num_tokens = kept
            session.roll_back()
            del tokens[session][kept:]
        if move == "free" and len(tokens) > 1:
            session.release()
            del tokens[session]
        elif move in ("new", "fork", "append"):
            append_tokens(session, first=count)
            tokens[session].append(count)
        yield tokens, move, session


@pytest.mark.slow
@kinds
@given(block_size=st.integers(1, 4), moves=MOVES, data=st.data())
def test_after_any_history_a_table_leads_to_every_token(kind, block_size, moves, data):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=200)
    tables = kind(manager, max_batch_size=99)
    for holders, move, session in play(manager, [("append", 0), *moves]):
        tokens = holders
        if move == "build":
            tables.build([session])
    batch = data.draw(st.lists(st.sampled_from(list(tokens)), min_size=1, unique=True))
    table = tables.build(batch)
    for b, session in enumerate(batch):
        assert not table[:, b, manager.blocks_for(session.num_tokens) :].any()
        places = [divmod(t, block_size) for t in range(session.num_tokens)]
        blocks, slots = torch.tensor(places, dtype=torch.long).view(-1, 2).T
        for layer_idx in range(2):
            found = manager.k_cache[layer_idx, table[layer_idx, b, blocks].long(), :, slots]  # [T, H, D]
            expected = [kv_numbers(manager, n, 1)[0][layer_idx, :, 0] for n in tokens[session]]
            assert torch.equal(found, torch.stack(expected) if expected else found[:0])


# --- rows that are kept ----------------------------------------------------------------------------


def rows_made(tables, sessions):
    """How many rows a build makes from Python numbers."""
    with OperatorCounter() as counter:
        tables.build(sessions)
    return counter.index_tensors


@pytest.mark.slow
@given(block_size=st.integers(1, 4), moves=MOVES)
def test_after_each_move_kept_rows_are_right_and_only_those_of_changed_lists_are_made(block_size, moves):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=200)
    cached, rebuilt = CachedBlockTables(manager, 99), RebuiltBlockTables(manager, 99)
    known = {}  # from what each session's rows were made
    for tokens, move, session in play(manager, moves):
        if move == "cut":
            known.pop(session, None)  # rows of a list that shrank are forgotten
        batch = list(tokens)
        lists = {s: [list(block_ids) for block_ids in s.block_ids_per_layer] for s in batch}
        changed = sum(
            s not in known or known[s][layer] != lists[s][layer] for s in batch for layer in range(2)
        )
        assert rows_made(cached, batch) == changed
        assert torch.equal(cached.build(batch), rebuilt.build(batch))
        known = lists
