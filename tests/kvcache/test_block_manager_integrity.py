"""`check_integrity` names each corruption of the books that is planted."""

import pytest
from helpers import append_tokens, make_manager

from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager


def freed_block(manager):
    """A block of layer 0 that somebody had: block 2."""
    freed = InferenceSession(manager)
    append_tokens(freed, first=0)
    freed.release()
    return manager._freed[0][-1]


def hold_an_empty_block_too_many(manager, session):
    append_tokens(session, first=6, num_tokens=2)
    session.block_ids_per_layer[0].append(manager.allocate_block(0, start=8))


PLANTED = {
    r"reference counts differ from holders \(block: booked, held\): {2: \(1, 0\)}": (
        lambda manager, _: manager.allocate_block(0, start=0)
    ),
    r"reference counts differ .* {1: \(2, 1\)}": lambda manager, _: manager.block_refcounts.update({1: 2}),
    r"block 1 is booked as .*length=3\), but its holder needs .*length=2\)": (
        lambda manager, _: manager.set_length(1, 3)
    ),
    "block 1 is held but not allocated": lambda manager, _: manager.deallocate_block(1),
    r"layer 0: used \[0, 1\] and freed \[2, 2\] blocks do not make up the 3": (
        lambda manager, _: manager._freed[0].append(freed_block(manager))
    ),
    r"layer 0: used \[0, 1\] and freed \[\] blocks do not make up the 3": (
        lambda manager, _: freed_block(manager) and manager._freed[1].append(manager._freed[0].pop())
    ),
    r"blocks \[2\] have a record or a reference count, but not both": (
        lambda manager, _: manager.block_refcounts.pop(manager.allocate_block(0, start=0))
    ),
    "6 tokens in layer 0 are held in 1 blocks": (
        lambda manager, session: manager.deallocate_block(session.block_ids_per_layer[0].pop())
    ),
    "8 tokens in layer 0 are held in 3 blocks": hold_an_empty_block_too_many,
    "block 1 is booked as .*start=4.* but its holder needs .*start=0": (
        lambda _, session: session.block_ids_per_layer[0].reverse()
    ),
    "block 8 is booked as .*layer=1.* but its holder needs .*layer=0": (
        lambda _, session: session.block_ids_per_layer.reverse()
    ),
}


@pytest.mark.parametrize("kind", [KVBlockManager, MutableInfoBlockManager])
@pytest.mark.parametrize(("message", "plant"), PLANTED.items())
def test_check_integrity_names_what_is_off(kind, plant, message):
    manager = make_manager(kind)
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=6)
    manager.check_integrity([session])
    plant(manager, session)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity([session])
