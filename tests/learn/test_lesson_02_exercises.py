"""The exercises of lesson 02: wrong answers get their own words, right ones are right in any clothes."""

import random
from itertools import permutations

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, refused
from hypothesis import given
from hypothesis import strategies as st

from labkit.learn import not_attempted
from labkit.learn.lesson_02 import (
    PLAN,
    SPLIT_FAST_SLOW,
    append_in_one_call,
    plan,
    play_plan,
    readable_manager,
    readable_session,
    split_fast_slow,
)

EXERCISES = pytest.mark.parametrize("exercise", [SPLIT_FAST_SLOW, PLAN], ids=lambda e: e.name)


@EXERCISES
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@EXERCISES
def test_each_case_has_its_own_hint(exercise):
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


# --- exercise 1 ----------------------------------------------------------------------------------------


def split_by(is_fast):
    """Fast are the places where the condition on length, holders and block size holds."""

    def attempt(lengths, holders, block_size):
        places = range(len(lengths))
        fast = [b for b in places if is_fast(lengths[b], holders[b], block_size)]
        return fast, [b for b in places if b not in fast]

    return attempt


def changed(change):
    """The right answer, changed."""

    def attempt(lengths, holders, block_size):
        return change(*split_fast_slow(lengths, holders, block_size))

    return attempt


def by_reason(lengths, holders, block_size):
    """Slow ones: first those without a block, then the full ones, then the shared."""
    places = range(len(lengths))
    none = [b for b in places if holders[b] == 0]
    full = [b for b in places if lengths[b] == block_size]
    shared = [b for b in places if holders[b] > 1 and b not in full]
    return [b for b in places if b not in none + full + shared], none + full + shared


def slow_for_each_reason(lengths, holders, block_size):
    fast, _ = split_fast_slow(lengths, holders, block_size)
    full = [b for b, length in enumerate(lengths) if length in (0, block_size)]
    shared = [b for b, num_holders in enumerate(holders) if num_holders > 1]
    return fast, sorted(full + shared)


def neither_if_there_is_no_block(lengths, holders, block_size):
    fast, slow = split_fast_slow(lengths, holders, block_size)
    return fast, [b for b in slow if holders[b]]


def by_value(lengths, holders, block_size):
    fast, slow = split_fast_slow(lengths, holders, block_size)
    return [lengths[b] for b in fast], [lengths[b] for b in slow]


WRONG_SPLITS = {
    "swaps the lists": (changed(lambda fast, slow: (slow, fast)), "the fast ones, the slow"),
    "gives the fast ones alone": (changed(lambda fast, slow: fast), "Return two lists of places"),
    "gives one list": (changed(lambda fast, slow: fast + slow), "Return two lists of places"),
    "gives the numbers of both": (changed(lambda fast, slow: (len(fast), len(slow))), "Return two lists"),
    "gives sets": (changed(lambda fast, slow: (set(fast), set(slow))), "Return two lists of places"),
    "gives a dict": (changed(lambda fast, slow: {"fast": fast, "slow": slow}), "Return two lists of places"),
    "gives lengths": (by_value, "Return two lists of places"),
    "counts places from 1": (
        changed(lambda fast, slow: ([b + 1 for b in fast], [b + 1 for b in slow])),
        "Return two lists of places",
    ),
    "gives truths": (
        lambda lengths, holders, block_size: [n < block_size for n in lengths],
        "Return two lists of places",
    ),
    "gives generators": (
        changed(lambda fast, slow: (iter(fast), iter(slow))),
        "Return two lists of places",
    ),
    "forgets full blocks": (split_by(lambda n, holders, size: holders == 1), "is full"),
    "sees a block full too late": (split_by(lambda n, holders, size: holders == 1 and n <= size), "is full"),
    "sees a block full too early": (
        split_by(lambda n, holders, size: holders == 1 and n < size - 1),
        "have room and one holder",
    ),
    "forgets sharers": (split_by(lambda n, holders, size: n < size and holders > 0), "must be copied"),
    "forgets sharers and the empty": (split_by(lambda n, holders, size: n < size), "must be copied"),
    "lets two share": (split_by(lambda n, holders, size: n < size and 0 < holders < 3), "must be copied"),
    "wants sharers": (split_by(lambda n, holders, size: n < size and holders > 1), "have room and one"),
    "takes no holder for one": (split_by(lambda n, holders, size: holders <= 1 and n < size), "nowhere to"),
    "asks for a rest": (split_by(lambda n, holders, size: holders <= 1 and n % size < size - 1), "have room"),
    "leaves the empty out": (neither_if_there_is_no_block, "nowhere to write"),
    "assumes blocks of 4": (split_by(lambda n, holders, size: holders == 1 and n < 4), "is an argument"),
    "wants one or the other": (split_by(lambda n, holders, size: holders == 1 or n < size), "is full"),
    "counts full sharers as fast": (
        split_by(lambda n, holders, size: (holders == 1) == (n < size) and holders > 0),
        "both, full and shared",
    ),
    "lists twice what is slow twice": (slow_for_each_reason, "both, full and shared"),
    "orders by reason": (by_reason, "in the order of the batch"),
    "puts the slow ones backwards": (changed(lambda fast, slow: (fast, slow[::-1])), "must be copied"),
    "puts the fast ones backwards": (changed(lambda fast, slow: (fast[::-1], slow)), "have room and one"),
    "assumes four requests at most": (
        changed(lambda fast, slow: ([b for b in fast if b < 4], [b for b in slow if b < 4])),
        "(all 7 cases passed, but not a random one)",
    ),
    "changes its argument": (
        lambda lengths, holders, block_size: holders.clear(),
        "changed its argument holders to []",
    ),
    "gives nothing back": (lambda **_: None, "A function without `return` gives None"),
}


def with_a_mask(lengths, holders, block_size):
    fast = (np.array(holders) == 1) & (np.array(lengths) < block_size)
    return np.where(fast)[0], np.where(~fast)[0]


def with_a_tensor(lengths, holders, block_size):
    fast = (torch.tensor(holders) == 1) & (torch.tensor(lengths) < block_size)
    return fast.nonzero().flatten(), (~fast).nonzero().flatten()


# --- exercise 2 ----------------------------------------------------------------------------------------


def planning(place_of):
    """A plan made request by request. `place_of` says: take a "new" block, or a "copy", or "stay"."""

    def attempt(last_blocks, lengths, holders, free, block_size):
        copies, writes, unused = [], [], iter(free)
        for b, block in enumerate(last_blocks):
            what = place_of(b, last_blocks, lengths, holders, block_size)
            if what == "new":
                writes.append(("write", b, next(unused), 0))
            elif what == "copy":
                copies.append(("copy", block, next(unused)))
                writes.append(("write", b, copies[-1][2], lengths[b]))
            else:
                writes.append(("write", b, block, lengths[b]))
        return copies + writes

    return attempt


def needs_new(b, last_blocks, lengths, block_size):
    return last_blocks[b] is None or lengths[b] == block_size


def copying_if(must_copy):
    """A boundary is right; of others those copy for whom the condition on (b, last_blocks, holders) holds."""

    def place_of(b, last_blocks, lengths, holders, block_size):
        if needs_new(b, last_blocks, lengths, block_size):
            return "new"
        return "copy" if must_copy(b, last_blocks, holders) else "stay"

    return planning(place_of)


def is_first(b, last_blocks):
    return last_blocks.index(last_blocks[b]) == b


def is_last(b, last_blocks):
    return last_blocks[b] not in last_blocks[b + 1 :]


def asks_for_room_last(last_blocks, lengths, holders, free, block_size):
    """Who shares is asked before who is full."""
    copies, writes, unused = [], [], iter(free)
    left = dict(zip(last_blocks, holders, strict=True))
    for b, (block, slot) in enumerate(zip(last_blocks, lengths, strict=True)):
        if left[block] > 1:
            left[block] -= 1
            copies.append(("copy", block, next(unused)))
            block = copies[-1][2]
        if block is None or slot == block_size:
            block, slot = next(unused), 0
        writes.append(("write", b, block, slot))
    return copies + writes


def new_block_for_sharers(b, last_blocks, lengths, holders, block_size):
    return "new" if needs_new(b, last_blocks, lengths, block_size) or holders[b] > 1 else "stay"


def edited(edit):
    """The right plan with each operation changed; `edit` is given the operation and the arguments."""

    def attempt(**arguments):
        return [edit(operation, arguments) for operation in plan(**arguments)]

    return attempt


def a_write(change):
    return edited(
        lambda operation, a: ("write", *change(*operation[1:], a)) if operation[0] == "write" else operation
    )


def a_copy(change):
    return edited(
        lambda operation, a: ("copy", *change(*operation[1:], a)) if operation[0] == "copy" else operation
    )


def whole(change):
    """The right plan's copies and writes, put together otherwise."""

    def attempt(**arguments):
        operations = plan(**arguments)
        copies = [operation for operation in operations if operation[0] == "copy"]
        return change(copies, operations[len(copies) :])

    return attempt


def one_request_after_the_other(copies, writes):
    operations = []
    for write in writes:
        operations += [copy for copy in copies if copy[2] == write[2]]
        operations.append(write)
    return operations


def takes_from_the_end(free, **arguments):
    return plan(free=free[::-1], **arguments)


def takes_by_place(last_blocks, lengths, holders, free, block_size):
    """Request b takes the b-th of the free blocks, whoever else takes one."""
    right = plan(last_blocks, lengths, holders, range(1000, 1100), block_size)
    taker = {operation[2]: operation[1] for operation in right if operation[0] == "write"}
    return [
        tuple(free[taker[n]] if isinstance(n, int) and n >= 1000 else n for n in operation)
        for operation in right
    ]


def takes_one_for_all(free, **arguments):
    return plan(free=[free[0]] * 20, **arguments)


def sees_only_the_batch(last_blocks, **arguments):
    inside = [last_blocks.count(block) for block in last_blocks]
    return plan(last_blocks, **{**arguments, "holders": inside})


def copies_full_blocks_too(last_blocks, lengths, holders, free, block_size):
    shared = [b for b, count in enumerate(holders) if count > 1 and lengths[b] == block_size]
    copies = [("copy", last_blocks[b], free[b]) for b in shared]
    return copies + plan(last_blocks, lengths, holders, free, block_size)


def uses_up(free, **arguments):
    right = plan(free=free, **arguments)
    free.clear()
    return right


OUTSIDE = "The third keeps block 7"
WRONG_PLANS = {
    "stays in place always": (planning(lambda *_: "stay"), "a block of 4 has no slot 4"),
    "takes a new block always": (planning(lambda *_: "new"), "Room and one holder"),
    "copies always": (planning(lambda *_: "copy"), "Room and one holder"),
    "never copies": (
        copying_if(lambda b, blocks, holders: False),
        "whoever else holds block 7 finds: [1, 2, 100]",
    ),
    "copies for every sharer": (
        copying_if(lambda b, blocks, holders: holders[b] > 1),
        "the other is the last holder of block 7",
    ),
    "only the first sharer copies": (
        copying_if(lambda b, blocks, holders: holders[b] > 1 and is_first(b, blocks)),
        "C and D both write to slot 2 of block 7, and one token is lost",
    ),
    "only the last sharer copies": (
        copying_if(lambda b, blocks, holders: holders[b] > 1 and is_last(b, blocks)),
        "B and C both write to slot 2 of block 7, and one token is lost",
    ),
    "the last in the batch stays": (
        copying_if(
            lambda b, blocks, holders: (
                holders[b] > 1 and not (is_last(b, blocks) and blocks.count(blocks[b]) > 1)
            )
        ),
        OUTSIDE,
    ),
    "the first in the batch stays": (
        copying_if(
            lambda b, blocks, holders: (
                holders[b] > 1 and not (is_first(b, blocks) and blocks.count(blocks[b]) > 1)
            )
        ),
        OUTSIDE,
    ),
    "sees the batch alone": (sees_only_the_batch, "may be outside the batch"),
    "asks who shares before what is full": (asks_for_room_last, "ask whether it is full first"),
    "copies full blocks too": (copies_full_blocks_too, "ask whether it is full first"),
    "leaves the shared block's tokens behind": (planning(new_block_for_sharers), "write to the copy"),
    "assumes blocks of 4": (
        lambda **a: plan(**{**a, "block_size": 4}),
        "a block of 8 has no slot 8",
    ),
    "writes behind the full block": (
        a_write(lambda b, block, slot, a: (b, block, a["lengths"][b])),
        "a block of 4 has no slot 4",
    ),
    "writes to the slot of the last token": (
        a_write(lambda b, block, slot, a: (b, block, max(slot - 1, 0))),
        "into the slot behind the last token",
    ),
    "writes to the next slot but one": (
        a_write(lambda b, block, slot, a: (b, block, min(slot + 1, a["block_size"] - 1))),
        "into the slot behind the last token",
    ),
    "writes to slot 0 always": (
        a_write(lambda b, block, slot, a: (b, block, 0)),
        "A reads: [100, 2, 'empty'], expected [1, 2, 100]. Room and one holder",
    ),
    "writes to the shared block": (
        a_write(lambda b, block, slot, a: (b, a["last_blocks"][b] if slot else block, slot)),
        "write to the copy",
    ),
    "swaps block and slot": (a_write(lambda b, block, slot, a: (b, slot, block)), "block 2 is no last block"),
    "counts requests from 1": (a_write(lambda b, block, slot, a: (b + 1, block, slot)), "no request 1 in a"),
    "names the request by its block": (
        a_write(lambda b, block, slot, a: (block, block, slot)),
        "no request 7",
    ),
    "forgets the slot": (a_write(lambda b, block, slot, a: (b, block)), "It takes ('write', b, block, slot)"),
    "forgets the request": (a_write(lambda b, block, slot, a: (block, slot)), "('write', b, block, slot)"),
    "writes to half a slot": (a_write(lambda b, block, slot, a: (b, block, slot / 2)), "whole numbers"),
    "writes a token for another": (
        a_write(lambda b, block, slot, a: (len(a["lengths"]) - 1 - b, block, slot)),
        "A reads: [100, 'empty'], expected [1, 100]",
    ),
    "copies the other way": (a_copy(lambda source, target, a: (target, source)), "write to the copy"),
    "copies slots": (
        a_copy(lambda source, target, a: (source, target, 0)),
        "It takes ('copy', from_block, to",
    ),
    "copies from nowhere": (a_copy(lambda source, target, a: (None, target)), "whole numbers"),
    "writes before it copies": (whole(lambda copies, writes: writes + copies), "every copy comes before"),
    "does one request after the other": (whole(one_request_after_the_other), "every copy comes before"),
    "copies all twice": (whole(lambda copies, writes: copies * 2 + writes), "write to the copy"),
    "forgets the copies": (whole(lambda copies, writes: writes), "write to the copy"),
    "forgets the writes": (whole(lambda copies, writes: copies), "The new token of A, request 0, is never"),
    "forgets the last write": (whole(lambda copies, writes: copies + writes[:-1]), "request 0, is never"),
    "writes twice": (whole(lambda copies, writes: copies + writes * 2), "one new token, and two writes"),
    "gives copies and writes apart": (
        whole(lambda copies, writes: (copies, writes)),
        "neither a 'copy' nor a",
    ),
    "gives one operation bare": (lambda **a: plan(**a)[0], "Return a list of operations"),
    "gives text": (lambda **a: [" ".join(map(str, o)) for o in plan(**a)], "Return a list of operations"),
    "gives dicts": (lambda **a: [{"write": o[1:]} for o in plan(**a)], "neither a 'copy' nor a 'write'"),
    "gives a generator": (lambda **a: (o for o in plan(**a)), "Return a list of operations"),
    "gives the blocks": (lambda **a: a["last_blocks"], "7 is neither a 'copy' nor a 'write'"),
    "calls a copy a move": (
        edited(lambda o, a: ("move", *o[1:]) if o[0] == "copy" else o),
        "neither a 'copy'",
    ),
    "takes free blocks from the end": (takes_from_the_end, "the next free block is taken"),
    "takes free blocks by place": (takes_by_place, "the next free block is taken"),
    "takes one free block for all": (takes_one_for_all, "B and C both write to slot 0 of block 3"),
    "takes a block of nobody's": (
        a_write(lambda b, block, slot, a: (b, block if slot else 99, slot)),
        "block 99 is no last block of the batch, and not free",
    ),
    "keeps the last block at a boundary": (
        a_write(lambda b, block, slot, a: (b, a["last_blocks"][b] or block, slot)),
        "B reads: [200, 3, 4, 5, 200], expected [2, 3, 4, 5, 200]",
    ),
    "uses the free blocks up": (uses_up, "changed its argument free to []"),
    "gives nothing back": (lambda **_: None, "gave None. Return a list of operations"),
    "crashes": (lambda **a: a["free"][9], "raised IndexError"),
    "never ends": (lambda **a: [None for _ in iter(int, 1)], "Is there a loop that never stops?"),
    "knows two copies at most": (
        whole(
            lambda copies, writes: copies[:2] + [w for w in writes if w[2] not in [c[2] for c in copies[2:]]]
        ),
        "(all 8 cases passed, but not a random one)",
    ),
}


@pytest.mark.slow
@refused((SPLIT_FAST_SLOW, WRONG_SPLITS), (PLAN, WRONG_PLANS))
def test_a_plausible_wrong_answer_is_refused_in_words_of_its_own(exercise, attempt, words):
    assert words in exercise.grade(attempt)


def the_first_stays(last_blocks, lengths, holders, free, block_size):
    """The first of those who share stays, if nobody outside shares, and the others copy."""

    def place_of(b, last_blocks, lengths, holders, block_size):
        if needs_new(b, last_blocks, lengths, block_size):
            return "new"
        alone = last_blocks.count(last_blocks[b]) == holders[b]
        return "stay" if alone and is_first(b, last_blocks) else "copy"

    return planning(place_of)(last_blocks, lengths, holders, free, block_size)


def boundaries_take_first(last_blocks, lengths, holders, free, block_size):
    """New blocks for the boundaries, then those for copies."""
    order = sorted(range(len(lengths)), key=lambda b: not needs_new(b, last_blocks, lengths, block_size))
    given = [[column[b] for b in order] for column in (last_blocks, lengths, holders)]
    return [("write", order[o[1]], *o[2:]) if o[0] == "write" else o for o in plan(*given, free, block_size)]


@pytest.mark.slow
@accepted(
    (
        SPLIT_FAST_SLOW,
        {
            "a list of lists": changed(lambda fast, slow: [fast, slow]),
            "a tuple of tuples": changed(lambda fast, slow: (tuple(fast), tuple(slow))),
            "arrays of a mask": with_a_mask,
            "tensors of a mask": with_a_tensor,
            "numbers of NumPy": changed(lambda fast, slow: (list(np.array(fast, int)), slow)),
            "an array and a list": changed(lambda fast, slow: (np.array(fast, int), slow)),
        },
    ),
    (
        PLAN,
        {
            "a tuple": lambda **a: tuple(plan(**a)),
            "lists": lambda **a: [list(operation) for operation in plan(**a)],
            "numbers of NumPy": edited(lambda o, a: (o[0], *np.array(o[1:]))),
            "tensors": edited(lambda o, a: (o[0], *torch.tensor(o[1:]))),
            "the first sharer stays": the_first_stays,
            "boundaries take first": boundaries_take_first,
            "writes backwards": whole(lambda copies, writes: copies + writes[::-1]),
            "copies backwards": whole(lambda copies, writes: copies[::-1] + writes),
            "any order": whole(
                lambda copies, writes: [
                    *random.Random(1).sample(copies, len(copies)),
                    *random.Random(2).sample(writes, len(writes)),
                ]
            ),
        },
    ),
)
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert is_right(exercise, attempt)


def test_of_three_sharers_any_can_stay_and_take_any_of_the_two_blocks():
    arguments = {"last_blocks": [7] * 3, "lengths": [2] * 3, "holders": [3] * 3, "free": [3, 5, 1]}
    seen = []
    for blocks in permutations([7, 3, 5]):
        copies = [("copy", 7, block) for block in blocks if block != 7]
        writes = [("write", b, block, 2) for b, block in enumerate(blocks)]
        answer = copies + writes
        seen.append(play_plan(lambda answer=answer, **_: answer, **arguments, block_size=4))
    assert seen == [play_plan(plan, **arguments, block_size=4)] * 6


# --- the exercises against the manager ------------------------------------------------------------------

BLOCKS = 20
families = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), st.booleans()), min_size=1, max_size=3)


def make_families(families):
    """Sessions that share their blocks in families; of some families one member is not in the batch."""
    manager, everyone, batch = readable_manager(BLOCKS), [], []
    for number, (num_tokens, num_members, one_stays_out) in enumerate(families):
        parent = readable_session(manager, range(100 * number, 100 * number + num_tokens))
        members = [parent, *(parent.fork() for _ in range(num_members - 1))]
        everyone += members
        batch += members[1:] if one_stays_out else members
    return manager, everyone, batch


@given(families)
def test_the_exercises_say_what_the_manager_does(families):
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
    append_in_one_call(batch, range(1000, 1000 + len(batch)))
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
    _, slow = split_fast_slow(**arguments)
    made_ready = {"boundary", "copy_on_write", "first"}
    counted = sum(count for path, count in manager.append_paths.items() if path in made_ready)
    # The last sharer of a block that others copied looks slow, and writes in place after all.
    stayed = sum(
        block == last[b] for b, block in ((w[1], w[2]) for w in planned if w[0] == "write") if b in slow
    )
    assert len(slow) == counted + stayed
