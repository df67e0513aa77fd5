"""Block tables: each row leads to its session's tokens, in every layer; a kept row is not stale."""

import pytest
import torch
from helpers import append_tokens, kv_numbers, make_manager
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine import InferenceSession
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.watch import OperatorCounter

MOVES = st.lists(
    st.tuples(st.sampled_from(["new", "append", "fork", "free", "cut"]), st.integers(0, 9), st.booleans()),
    max_size=80,
)


def play(manager, moves):
    """Make each move; after it: the number of each token that each session holds, whose move it
    was, its name, and whether tables are built behind it.

    Layer 1 starts one block later than layer 0, so their ids differ.
    """
    manager.append_token(1, [], torch.zeros(2, 3), torch.zeros(2, 3))
    tokens = {InferenceSession(manager): []}
    for count, (move, which, is_built) in enumerate(moves):
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
        yield tokens, session, move, is_built


def rows_made(tables, sessions):
    """How many rows a build makes from Python numbers."""
    with OperatorCounter() as counter:
        tables.build(sessions)
    return counter.index_tensors


def assert_leads_to(manager, table, tokens):
    """Each row to every token of its session, and to nothing behind them."""
    for b, (session, held) in enumerate(tokens.items()):
        assert not table[:, b, manager.blocks_for(session.num_tokens) :].any()
        places = [divmod(t, manager.block_size) for t in range(session.num_tokens)]
        blocks, slots = torch.tensor(places, dtype=torch.long).view(-1, 2).T
        for layer_idx in range(2):
            found = manager.k_cache[layer_idx, table[layer_idx, b, blocks].long(), :, slots]  # [T, H, D]
            expected = [kv_numbers(manager, n, 1)[0][layer_idx, :, 0] for n in held]
            assert torch.equal(found, torch.stack(expected) if expected else found[:0])


@pytest.mark.slow
@given(block_size=st.integers(1, 4), moves=MOVES)
def test_tables_lead_to_every_token_and_only_rows_of_changed_lists_are_made(block_size, moves):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=200)
    cached, rebuilt = CachedBlockTables(manager, 99), RebuiltBlockTables(manager, 99)
    known = {}  # from what each session's rows were made
    for tokens, session, move, is_built in play(manager, [("append", 0, True), *moves]):
        batch = list(tokens)
        if move == "cut":
            known.pop(session, None)  # rows of a list that shrank are forgotten
        if is_built:
            lists = {s: [list(block_ids) for block_ids in s.block_ids_per_layer] for s in batch}
            changed = sum(
                s not in known or known[s][layer] != lists[s][layer] for s in batch for layer in range(2)
            )
            assert rows_made(cached, batch) == changed
            assert torch.equal(cached.build(batch), rebuilt.build(batch))
            known = lists
    assert_leads_to(manager, rebuilt.build(batch), tokens)
