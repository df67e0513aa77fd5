"""Lesson 02: the solution of its exercise says what the package does."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.kvcache import AppendBatched, KVBlockManager
from labkit.learn.lesson_02.exercises import plan
from labkit.learn.lesson_02.toy import append_step, readable_session
from labkit.learn.lesson_05.work import tiny_manager

BLOCKS = 20
families = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), st.booleans()), min_size=1, max_size=3)


def make_families(families):
    """Sessions that share their blocks in families; of some families one member is not in the batch."""
    manager, everyone, batch = tiny_manager(KVBlockManager, max_blocks_per_layer=BLOCKS), [], []
    for number, (num_tokens, num_members, one_stays_out) in enumerate(families):
        parent = readable_session(manager, range(100 * number, 100 * number + num_tokens))
        members = [parent, *(parent.fork() for _ in range(num_members - 1))]
        everyone += members
        batch += members[1:] if one_stays_out else members
    return manager, everyone, batch


@given(families)
def test_the_plan_says_what_the_manager_does(families):
    manager, everyone, batch = make_families(families)
    if not batch:
        return
    last = [s.block_ids_per_layer[0][-1] if s.num_tokens else None for s in batch]
    arguments = {
        "lengths": tuple(0 if i is None else manager.info(i).length for i in last),
        "holders": tuple(0 if i is None else manager.refcount(i) for i in last),
        "block_size": manager.block_size,
    }
    first_free = BLOCKS - manager.num_free_blocks
    planned = plan(tuple(last), free=tuple(range(first_free, BLOCKS)), **arguments)
    before = manager.k_cache.clone()
    append_step(AppendBatched, batch, range(1000, 1000 + len(batch)))
    manager.check_integrity(everyone)
    # Carried out on the pool as it was, the plan's operations make the pool as it is.
    for kind, *operands in planned:
        if kind == "copy":
            source, target = operands
            before[0, target] = before[0, source]
        else:
            b, block, slot = operands
            before[0, block, :, slot] = 1000 + b
    assert torch.equal(before, manager.k_cache)
