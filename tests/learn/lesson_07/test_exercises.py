"""The graders of lesson 07: wrong answers get their own words, and right ones are right in any clothes."""

from collections import Counter

import numpy as np
import pytest
import torch

from labkit import LADDER
from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager, OneTableBlockManager
from labkit.learn import not_attempted
from labkit.learn.lesson_07 import engines
from labkit.learn.lesson_07.exercises import (
    APPEND_ALL_LAYERS,
    BLOCKS_NEEDED,
    append_all_layers,
    blocks_needed,
)
from labkit.learn.lesson_07.places import next_step_of

CPU = torch.device("cpu")
THIS = LADDER["07"].options


# --- all layers: wrong ---------------------------------------------------------------------------------


def in_loops(k_cache, block_table, context_lens, keys):
    for b, length in enumerate(context_lens.tolist()):
        if length >= 0:
            block, slot = block_table[b, length // k_cache.shape[3]], length % k_cache.shape[3]
            k_cache[:, block, :, slot] = keys[:, b]


def at(place):
    """The right answer, but for the place: a function of row, length and block size; None leaves it out."""

    def append_all_layers(k_cache, block_table, context_lens, keys):
        for b, (row, length) in enumerate(zip(block_table.tolist(), context_lens.tolist(), strict=True)):
            where = place(row, length, k_cache.shape[3])
            if where:
                k_cache[:, where[0], :, where[1]] = keys[:, b]

    return append_all_layers


def before_that(do):
    """The right answer, after something that it must not do."""

    def append_all_layers(k_cache, block_table, context_lens, keys):
        arguments = {
            "k_cache": k_cache,
            "block_table": block_table,
            "context_lens": context_lens,
            "keys": keys,
        }
        given = {name: tensor.clone() for name, tensor in arguments.items()}
        do(k_cache=k_cache, block_table=block_table, context_lens=context_lens, keys=keys)
        in_loops(**{**given, "k_cache": k_cache})

    return append_all_layers


def forgets_that_indexed_dimensions_come_first(k_cache, block_table, context_lens, keys):
    b = (context_lens >= 0).nonzero()[:, 0]
    block, pos = block_table[b, context_lens[b] // k_cache.shape[3]], context_lens[b] % k_cache.shape[3]
    k_cache[:, block, :, pos] = keys[:, b] if len(b) == len(keys) else keys[:, b].transpose(0, 1)


def the_first_layer_only(k_cache, block_table, context_lens, keys):
    in_loops(k_cache[:1], block_table, context_lens, keys[:1])


def the_first_head_only(k_cache, block_table, context_lens, keys):
    in_loops(k_cache[:, :, :1], block_table, context_lens, keys[:, :, :1])


def the_first_layer_s_keys_for_all(k_cache, block_table, context_lens, keys):
    in_loops(k_cache, block_table, context_lens, keys[:1].expand_as(keys))


def the_first_request_s_keys_for_all(k_cache, block_table, context_lens, keys):
    in_loops(k_cache, block_table, context_lens, keys[:, :1].expand_as(keys))


def heads_turned_around(k_cache, block_table, context_lens, keys):
    in_loops(k_cache, block_table, context_lens, keys.flip(2))


def a_copy_of_the_pool(k_cache, block_table, context_lens, keys):
    k_cache = k_cache.clone()
    in_loops(k_cache, block_table, context_lens, keys)
    return k_cache


def stops_at_the_padding(k_cache, block_table, context_lens, keys):
    for b, length in enumerate(context_lens.tolist()):
        if length < 0:
            break
        in_loops(k_cache, block_table[b : b + 1], context_lens[b : b + 1], keys[:, b : b + 1])


def cuts_the_padding_off_at_the_end(k_cache, block_table, context_lens, keys):
    B = int((context_lens >= 0).sum())
    in_loops(k_cache, block_table[:B], context_lens[:B], keys[:, :B])


def pads_too(k_cache, block_table, context_lens, keys):
    in_loops(k_cache, block_table, context_lens.clamp(min=0), keys)


def zeroes_its_block(k_cache, block_table, context_lens, keys):
    for row, length in zip(block_table.tolist(), context_lens.tolist(), strict=True):
        if length >= 0:
            k_cache[:, row[length // k_cache.shape[3]]] = 0


def adds_to_what_is_there(k_cache, block_table, context_lens, keys):
    for b, length in enumerate(context_lens.tolist()):
        if length >= 0:
            k_cache[:, block_table[b, length // k_cache.shape[3]], :, length % k_cache.shape[3]] += keys[:, b]


def right_place(row, length, size):
    return (row[length // size], length % size) if length >= 0 else None


WRONG_APPENDS = {
    "writes nothing": (lambda k_cache, block_table, context_lens, keys: None, "in `k_cache` itself"),
    "a copy of the pool": (a_copy_of_the_pool, "in `k_cache` itself"),
    "one behind": (at(lambda row, n, size: right_place(row, n - 1, size)), "Token number 1 (the second)"),
    "one ahead": (at(lambda row, n, size: right_place(row, n + 1, size)), "Token number 1 (the second)"),
    "the logical block": (
        at(lambda row, n, size: (n // size, n % size) if n >= 0 else None),
        "the first block that the row names",
    ),
    "the last block of the row": (
        at(lambda row, n, size: (row[-1], n % size) if n >= 0 else None),
        "the first block that the row names",
    ),
    "slot and block exchanged": (
        at(lambda row, n, size: (row[n % size % len(row)], n // size) if n >= 0 else None),
        "Token number 1 (the second)",
    ),
    "the first layer only": (the_first_layer_only, "One table serves all layers"),
    "the first head only": (the_first_head_only, "with all its heads"),
    "the first layer's keys for all": (the_first_layer_s_keys_for_all, "each gets its own key"),
    "heads turned around": (heads_turned_around, "with all its heads"),
    "adds to what is there": (adds_to_what_is_there, "each gets its own key"),
    "always the first block": (
        at(lambda row, n, size: (row[0], n % size) if n >= 0 else None),
        "opens the row's second one",
    ),
    "a full block is not left": (
        at(lambda row, n, size: (row[max(n - 1, 0) // size], n % size) if n >= 0 else None),
        "opens the row's second one",
    ),
    "blocks of 4": (at(lambda row, n, size: right_place(row, n, 4)), "Blocks are not always of 4 slots"),
    "the first request's keys for all": (the_first_request_s_keys_for_all, "its own row, length and key"),
    "forgets that indexed dimensions come first": (
        forgets_that_indexed_dimensions_come_first,
        "its own piece of the key",
    ),
    "pads, too": (pads_too, "Nothing is stored for it"),
    "pads from behind": (at(lambda row, n, size: (row[n // size], n % size)), "Nothing is stored for it"),
    "an empty request is padding": (
        at(lambda row, n, size: right_place(row, n, size) if n > 0 else None),
        "Each request has its own row",
    ),
    "stops at the padding": (stops_at_the_padding, "go on with the next"),
    "cuts the padding off at the end": (cuts_the_padding_off_at_the_end, "leave that row out"),
    "erases the pool": (before_that(lambda k_cache, **_: k_cache.zero_()), "Other tokens' keys lie there"),
    "zeroes its block": (
        before_that(lambda keys, **others: zeroes_its_block(keys=keys, **others)),
        "write the new keys, and nothing else",
    ),
    "rounds the pool": (before_that(lambda k_cache, **_: k_cache.round_(decimals=1)), "write the new keys"),
    "counts": (
        before_that(lambda context_lens, **_: context_lens.add_(1)),
        "changed its argument context_lens",
    ),
    "destroys the keys": (before_that(lambda keys, **_: keys.zero_()), "changed its argument keys"),
    "destroys the table": (
        before_that(lambda block_table, **_: block_table.fill_(-1)),
        "changed its argument block_table",
    ),
    "two blocks at most": (
        at(lambda row, n, size: right_place(row[:2] + row[1:2], n, size)),
        "behind its tokens, in each layer",
    ),
}


# --- all layers: right ---------------------------------------------------------------------------------


def in_one_assignment(k_cache, block_table, context_lens, keys):
    b = (context_lens >= 0).nonzero()[:, 0]
    size = k_cache.shape[3]
    block, pos = block_table[b, context_lens[b] // size], context_lens[b] % size
    k_cache[:, block, :, pos] = keys[:, b].transpose(0, 1)  # indexed dimensions come first: [B, L, H, D]


def in_numpy(k_cache, block_table, context_lens, keys):
    cache, table, lengths = k_cache.numpy(), block_table.numpy(), context_lens.numpy()
    (b,) = np.nonzero(lengths >= 0)
    blocks, slots = np.divmod(lengths[b], cache.shape[3])
    for layer in range(len(cache)):
        cache[layer, table[b, blocks], :, slots] = keys.numpy()[layer, b]


def with_index_put(k_cache, block_table, context_lens, keys):
    L, _, H, size, _ = k_cache.shape
    for layer in range(L):
        for b in range(len(context_lens)):
            n = int(context_lens[b])
            for h in range(H if n >= 0 else 0):
                k_cache[layer, block_table[b][n // size], h, n % size].copy_(keys[layer, b, h])
    return k_cache


# --- blocks needed: wrong ------------------------------------------------------------------------------


def is_full(num_tokens, block_size):
    return num_tokens % block_size == 0


def eats_the_holders(sequences, holders, block_size):
    needed = 0
    for num_tokens, block in sequences:
        if is_full(num_tokens, block_size):
            needed += 1
        elif holders[block] > 1:
            holders[block] -= 1
            needed += 1
    return needed


def copies_once_for_each_block(sequences, holders, block_size):
    shared = {b for n, b in sequences if not is_full(n, block_size) and holders[b] > 1}
    return sum(is_full(n, block_size) for n, _ in sequences) + len(shared)


def all_sharers_but_one(sequences, holders, block_size):
    full = sum(is_full(n, block_size) for n, _ in sequences)
    sharers = Counter(b for n, b in sequences if not is_full(n, block_size))
    return full + sum(k - 1 if k > 1 else holders[b] > 1 for b, k in sharers.items())


def all_holders_but_one(sequences, holders, block_size):
    full = sum(is_full(n, block_size) for n, _ in sequences)
    return full + sum(holders[b] - 1 for b in {b for n, b in sequences if not is_full(n, block_size)})


def without_the_block_of_id_0(sequences, holders, block_size):
    open_ones = [(n, b) for n, b in sequences if n and not is_full(n, block_size) and b]
    full = sum(is_full(n, block_size) for n, _ in sequences)
    return full + BLOCKS_NEEDED.solution(open_ones, holders, block_size)


def summed(need):
    """One sequence at a time: need is a function of its tokens, its last block, the holders, the size."""

    def blocks_needed(sequences, holders, block_size):
        return sum(need(n, block, holders, block_size) for n, block in sequences)

    return blocks_needed


WRONG_NEEDS = {
    "one each": (lambda sequences, holders, block_size: len(sequences), "There is room in both"),
    "all blocks of all tokens": (summed(lambda n, b, holders, size: -(-(n + 1) // size)), "There is room"),
    "none ever": (lambda sequences, holders, block_size: 0, "A full last block needs a new one"),
    "full one token early": (summed(lambda n, b, holders, size: n % size == size - 1), "A full last block"),
    "twelve a block": (
        lambda sequences, holders, block_size: 12 * blocks_needed(sequences, holders, block_size),
        "in all layers at once",
    ),
    "forgets the empty": (summed(lambda n, b, holders, size: n > 0 and is_full(n, size)), "has no block yet"),
    "looks at the block first": (
        summed(lambda n, b, holders, size: holders[b] > 1 or is_full(n, size)),
        "raised KeyError: None",
    ),
    "forgets copies": (summed(lambda n, b, holders, size: is_full(n, size)), "copied before it is written"),
    "one for the whole batch": (
        lambda sequences, holders, block_size: int(any(is_full(n, block_size) for n, _ in sequences)),
        "copied before it is written",
    ),
    "copies full blocks, too": (
        summed(lambda n, b, holders, size: is_full(n, size) + (holders.get(b, 1) > 1)),
        "sharing it needs no copy",
    ),
    "a new one for all who share": (
        lambda sequences, holders, block_size: blocks_needed(
            list(dict.fromkeys(sequences)), holders, block_size
        ),
        "each sequence opens a new one",
    ),
    "copies for every sharer": (
        summed(lambda n, b, holders, size: is_full(n, size) or holders[b] > 1),
        "the only holder and writes in place",
    ),
    "eats the holders": (eats_the_holders, "changed its argument holders to {2: 1}"),
    "copies once for each block": (copies_once_for_each_block, "so both copy"),
    "all sharers but one": (all_sharers_but_one, "so both copy"),
    "all holders but one": (all_holders_but_one, "when its turn comes"),
    "without the block of id 0": (without_the_block_of_id_0, "0 is the id of a block"),
    "blocks of 4": (
        lambda sequences, holders, block_size: blocks_needed(sequences, holders, 4),
        "Blocks are not always of 4 tokens",
    ),
    "the sequences that copy": (
        lambda sequences, holders, block_size: [n for n, _ in sequences if is_full(n, block_size)],
        "gave [], expected 0",
    ),
}


# --- blocks needed: right ------------------------------------------------------------------------------


def by_groups(sequences, holders, block_size):
    full = sum(is_full(n, block_size) for n, _ in sequences)
    sharers = Counter(b for n, b in sequences if not is_full(n, block_size))
    return full + sum(min(k, holders[b] - 1) for b, k in sharers.items())


def lets_go_of_full_blocks(sequences, holders, block_size):
    holders, needed = dict(holders), 0
    for num_tokens, block in sequences:
        needed += is_full(num_tokens, block_size) or holders[block] > 1
        if block is not None:
            holders[block] -= 1
    return needed


def on_copies(sequences, holders, block_size):
    return np.int64(eats_the_holders(list(sequences), dict(holders), block_size))


def as_a_tensor(sequences, holders, block_size):
    return torch.tensor(by_groups(sequences[::-1], holders, block_size))


RIGHT = [
    *((APPEND_ALL_LAYERS, attempt) for attempt in (in_loops, in_one_assignment, in_numpy, with_index_put)),
    *((BLOCKS_NEEDED, attempt) for attempt in (by_groups, on_copies, as_a_tensor, lets_go_of_full_blocks)),
]
WRONG = [
    *((APPEND_ALL_LAYERS, *wrong) for wrong in WRONG_APPENDS.values()),
    *((BLOCKS_NEEDED, *wrong) for wrong in WRONG_NEEDS.values()),
]


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [APPEND_ALL_LAYERS, BLOCKS_NEEDED], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@pytest.mark.parametrize(("exercise", "attempt", "words"), WRONG, ids=[*WRONG_APPENDS, *WRONG_NEEDS])
def test_a_wrong_answer_is_told_what_it_breaks(exercise, attempt, words):
    assert words in exercise.grade(attempt)


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "attempt"), RIGHT, ids=[a.__name__ for _, a in RIGHT])
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


def test_a_verdict_tells_what_was_there_and_what_was_seen():
    assert APPEND_ALL_LAYERS.grade(the_first_layer_only) == (
        "append_all_layers: with block_table=[[2, 0]], context_lens=[1], block_size=4, whose keys are where: "
        "(2, 1): 'request 0, in layers [0] only', expected 'request 0'. One table serves all layers: the "
        "block lies at the same place in each, and each gets its own key, with all its heads. (1 of 7 cases "
        "passed)"
    )


def test_a_crash_in_an_attempt_is_told():
    verdict = APPEND_ALL_LAYERS.grade(lambda k_cache, block_table, context_lens, keys: block_table[99])
    assert "raised IndexError" in verdict


# --- the solutions and the engine ----------------------------------------------------------------------


def test_the_append_of_all_layers_is_the_engine_s():
    """The keys of a real step, taken from rung 07's pool, stored again by the exercise's solution."""
    engine = engines.sharing_engine(engines.small_gpt2(n_layer=3), THIS, CPU)
    engine.step()
    rows, lengths = next_step_of(engine)
    engine.step()
    manager, b = engine.kv_manager, range(len(rows))
    block = [row[n // 4] for row, n in zip(rows, lengths, strict=True)]
    pos = [n % 4 for n in lengths]
    keys = torch.stack([manager.k_cache[:, block[i], :, pos[i]] for i in b], dim=1)  # [L, B, H, D]
    stored = manager.k_cache.clone()
    for i in b:
        stored[:, block[i], :, pos[i]] = 0
    append_all_layers(stored, torch.tensor(rows), torch.tensor(lengths), keys)
    assert torch.equal(stored, manager.k_cache)


@pytest.mark.parametrize("kind", [KVBlockManager, OneTableBlockManager])
@pytest.mark.parametrize("seed", range(20))
def test_the_blocks_needed_are_those_that_a_reservation_takes(kind, seed):
    """Sessions of random lengths, some of them forks of others."""
    generator = torch.Generator().manual_seed(seed)

    def randint(high):
        return int(torch.randint(high, (), generator=generator))

    manager = kind(num_layers=2, num_heads=1, head_dim=1, block_size=4, max_blocks_per_layer=64)
    sessions = [InferenceSession(manager) for _ in range(4)]
    for session in sessions:
        numbers = torch.zeros(2, 1, randint(10), 1)
        session.append_prompt(numbers, numbers)
    sessions += [sessions[randint(4)].fork() for _ in range(4)]
    lists = [session.block_ids_per_layer[0] for session in sessions]
    sequences = [(s.num_tokens, ids[-1] if ids else None) for s, ids in zip(sessions, lists, strict=True)]
    holders = {i: manager.refcount(i) for ids in lists for i in ids}
    free = manager.num_free(0)
    if kind is KVBlockManager:
        manager.append_token_batch(0, lists, torch.zeros(8, 1, 1), torch.zeros(8, 1, 1))
    else:
        manager.reserve_token_batch(0, lists)
    assert BLOCKS_NEEDED.solution(sequences, holders, 4) == free - manager.num_free(0)
