"""Block tables: each row leads the kernel to its session's tokens, in every layer."""

import torch
from helpers import append_tokens, kv_numbers, make_manager
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine import InferenceSession
from labkit.kvcache import RebuiltBlockTables


def sessions_of(manager, *lengths):
    """Sessions of these many tokens; layer 1 starts one block later than layer 0, so their ids differ."""
    manager.append_token(1, [], torch.zeros(2, 3), torch.zeros(2, 3))
    sessions = [InferenceSession(manager) for _ in lengths]
    for session, length in zip(sessions, lengths, strict=True):
        append_tokens(session, first=0, num_tokens=length)
    return sessions


def test_a_row_holds_the_places_in_its_layers_pool_padded_with_0():
    manager = make_manager()
    sessions = sessions_of(manager, 6, 1, 4)
    assert sessions[0].block_ids_per_layer == [[0, 1], [9, 10]]
    table = RebuiltBlockTables(manager, max_batch_size=3, max_blocks_per_seq=4).build(sessions)
    assert table.dtype == torch.int32
    assert table.tolist() == [
        [[0, 1, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]],
        [[1, 2, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0]],
    ]


def test_a_batch_may_be_any_of_the_sessions_in_any_order():
    manager = make_manager()
    sessions = sessions_of(manager, 6, 1, 4)
    tables = RebuiltBlockTables(manager, max_batch_size=3, max_blocks_per_seq=2)
    tables.build(sessions)  # longer than what follows: nothing of it may be left
    assert tables.build([sessions[2], sessions[1]]).tolist() == [[[3, 0], [2, 0]], [[4, 0], [3, 0]]]
    assert tables.build([sessions[0]]).tolist() == [[[0, 1]], [[1, 2]]]


MOVES = st.lists(st.tuples(st.sampled_from(["new", "append", "fork", "free", "cut"]), st.integers(0, 9)))


@given(block_size=st.integers(1, 4), moves=MOVES, data=st.data())
def test_after_any_history_a_table_leads_to_every_token(block_size, moves, data):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=200)
    tables = RebuiltBlockTables(manager, max_batch_size=99, max_blocks_per_seq=99)
    (session,) = sessions_of(manager, 1)
    tokens = {session: [0]}  # the number of each token a session holds
    for count, (move, which) in enumerate(moves, start=1):
        session = list(tokens)[which % len(tokens)]
        if move == "new":
            session = InferenceSession(manager)
            tokens[session] = []
        elif move == "fork":
            child = session.fork()
            tokens[child] = list(tokens[session])
        elif move == "free" and len(tokens) > 1:
            session.release()
            del tokens[session]
            continue
        elif move == "cut" and not session.next_token_takes_block:
            session.num_tokens -= 1
            session.roll_back()
            tokens[session].pop()
        append_tokens(session, first=count)
        tokens[session].append(count)

    batch = data.draw(st.lists(st.sampled_from(list(tokens)), min_size=1, unique=True))
    table = tables.build(batch)
    for b, session in enumerate(batch):
        places = [divmod(t, block_size) for t in range(session.num_tokens)]
        blocks, slots = torch.tensor(places).T
        assert not table[:, b, manager.blocks_for(session.num_tokens) :].any()
        for layer_idx in range(2):
            found = manager.k_cache[layer_idx, table[layer_idx, b, blocks].long(), :, slots]  # [T, H, D]
            expected = [kv_numbers(manager, n, 1)[0][layer_idx, :, 0] for n in tokens[session]]
            assert torch.equal(found, torch.stack(expected))
