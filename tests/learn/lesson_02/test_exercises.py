"""The exercises of lesson 02: wrong answers get their own words, right ones are right in any clothes."""

import random

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, refused
from hypothesis import given
from hypothesis import strategies as st

from labkit.kvcache import AppendBatched
from labkit.learn import not_attempted
from labkit.learn.lesson_02.exercises import BLOCKS_FOR_A_STEP, PLAN, blocks_for_a_step, plan
from labkit.learn.lesson_02.toy import append_step, readable_manager, readable_session

EXERCISES = pytest.mark.parametrize("exercise", [BLOCKS_FOR_A_STEP, PLAN], ids=lambda e: e.name)


@EXERCISES
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@EXERCISES
def test_each_case_has_its_own_hint(exercise):
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


# --- exercise 1 ----------------------------------------------------------------------------------------


def needing(needs):
    """As many blocks as there are requests for which the condition on (place, arguments) holds."""

    def attempt(**arguments):
        return sum(needs(b, **arguments) for b in range(len(arguments["lengths"])))

    return attempt


def is_full(b, last_blocks, lengths, block_size, **_):
    return last_blocks[b] is None or lengths[b] == block_size


def is_shared(b, holders, **_):
    return holders[b] > 1


def inside(b, last_blocks):
    return last_blocks.count(last_blocks[b])


def changed(change):
    """The right number, changed; `change` is given it and the arguments."""

    def attempt(**arguments):
        return change(blocks_for_a_step(**arguments), arguments)

    return attempt


def with_holders(change):
    """The right number for other holders."""

    def attempt(holders, **arguments):
        return blocks_for_a_step(holders=[change(n) for n in holders], **arguments)

    return attempt


def one_of_a_family_stays(last_blocks, lengths, holders, block_size):
    """Whoever else holds the block, the last one of the batch stays."""
    needed = 0
    for b, block in enumerate(last_blocks):
        if is_full(b, last_blocks, lengths, block_size):
            needed += 1
        elif holders[b] > 1:
            needed += inside(b, last_blocks) == 1 or block in last_blocks[b + 1 :]
    return needed


def one_family_only(last_blocks, lengths, holders, block_size):
    """One less, if all holders of any block are in the batch."""
    asked = needing(lambda b, **a: is_full(b, **a) or is_shared(b, **a))
    arguments = {"last_blocks": last_blocks, "lengths": lengths, "holders": holders}
    stays = any(
        holders[b] > 1
        and inside(b, last_blocks) == holders[b]
        and not is_full(b, last_blocks, lengths, block_size)
        for b in range(len(lengths))
    )
    return asked(**arguments, block_size=block_size) - stays


def changes_its_argument(holders, **arguments):
    right = blocks_for_a_step(holders=holders, **arguments)
    holders.sort()
    holders.append(0)
    return right


WRONG_NUMBERS = {
    "asks each request alone": (
        needing(lambda b, **a: is_full(b, **a) or is_shared(b, **a)),
        "B is its last holder and writes in place",
    ),
    "forgets copies": (needing(is_full), "has block 7, too: A copies it"),
    "forgets full blocks": (
        needing(lambda b, **a: a["last_blocks"][b] is None or is_shared(b, **a)),
        "Behind a full block",
    ),
    "forgets the first block": (
        needing(lambda b, **a: a["lengths"][b] == a["block_size"] or is_shared(b, **a)),
        "takes its first one",
    ),
    "counts requests": (lambda **a: len(a["lengths"]), "no block is taken"),
    "counts a shared block once": (
        lambda **a: (
            needing(is_full)(**a)
            + len({n for b, n in enumerate(a["last_blocks"]) if is_shared(b, **a) and not is_full(b, **a)})
        ),
        "so that both copy it",
    ),
    "the last in the batch always stays": (one_of_a_family_stays, "so that both copy it"),
    "sees the batch alone": (
        lambda **a: blocks_for_a_step(
            **{**a, "holders": [inside(b, a["last_blocks"]) for b in range(len(a["lengths"]))]}
        ),
        "has block 7, too",
    ),
    "one family stays": (one_family_only, "Two families"),
    "copies full blocks": (
        lambda **a: (
            blocks_for_a_step(**a)
            + sum(n > 1 and m == a["block_size"] for n, m in zip(a["holders"], a["lengths"], strict=True))
        ),
        "A full block is not copied",
    ),
    "asks who shares before what is full": (
        lambda **a: (
            needing(lambda b, **a: is_full(b, **a) and not is_shared(b, **a))(**a)
            + sum(
                min(inside(b, a["last_blocks"]), n - 1) / inside(b, a["last_blocks"])
                for b, n in enumerate(a["holders"])
                if n > 1
            )
        ),
        "A full block is not copied",
    ),
    "counts a holder too many": (with_holders(lambda n: n + 1), "no block is taken"),
    "counts a holder too few": (with_holders(lambda n: n - 1), "has block 7, too"),
    "assumes blocks of 4": (lambda **a: blocks_for_a_step(**{**a, "block_size": 4}), "is an argument"),
    "sees a block full too early": (
        lambda **a: blocks_for_a_step(**{**a, "lengths": [n + 1 for n in a["lengths"]]}),
        "no block is taken",
    ),
    "gives a truth": (changed(lambda n, _: bool(n)), "so that both copy it"),
    "gives a list": (changed(lambda n, _: [n]), "no block is taken"),
    "assumes three requests at most": (changed(lambda n, a: min(n, 3)), "but not a random one)"),
    "changes its argument": (changes_its_argument, "changed its argument holders to"),
    "gives nothing back": (lambda **_: None, "A function without `return` gives None"),
    "crashes": (lambda **a: a["holders"][99], "raised IndexError"),
}


def with_families(last_blocks, lengths, holders, block_size):
    """Counted family by family, with NumPy."""
    blocks = np.array([-1 if block is None else block for block in last_blocks])
    lengths, holders = np.array(lengths), np.array(holders)
    full = (blocks < 0) | (lengths == block_size)
    families = [blocks == block for block in set(blocks[~full].tolist())]
    return np.int64(full.sum()) + sum(np.minimum(f.sum(), holders[f][0] - 1) for f in families)


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
        "(all 9 cases passed, but not a random one)",
    ),
}


@pytest.mark.slow
@refused((BLOCKS_FOR_A_STEP, WRONG_NUMBERS), (PLAN, WRONG_PLANS))
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
        BLOCKS_FOR_A_STEP,
        {
            "families, in NumPy": with_families,
            "a number of NumPy": changed(lambda n, _: np.int32(n)),
            "a tensor": changed(lambda n, _: torch.tensor(n)),
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
    needed = blocks_for_a_step(tuple(last), **arguments)
    num_free = manager.num_free_blocks
    planned = plan(tuple(last), free=tuple(range(first_free, BLOCKS)), **arguments)
    before = manager.k_cache.clone()
    append_step(AppendBatched, batch, range(1000, 1000 + len(batch)))
    assert num_free - manager.num_free_blocks == needed
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
