"""The exercises of lesson 03: wrong answers get their own words, right ones are right in any clothes."""

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, refused

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, kernels, watch
from labkit.learn import not_attempted
from labkit.learn.lesson_03.exercises import FULL_BATCH_STEPS, OFFSETS, full_batch_steps, offsets

EXERCISES = pytest.mark.parametrize("exercise", [OFFSETS, FULL_BATCH_STEPS], ids=lambda e: e.name)


@EXERCISES
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert is_right(exercise, exercise.solution)
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


@EXERCISES
def test_each_case_has_its_own_hint(exercise):
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


def right_start(program, block_idx, pos, n, h, t):
    return block_idx[program[0]] * n + program[1] * h + pos * t


def right_lanes(chunk, D, BLOCK_D):
    return [d for d in range(chunk * BLOCK_D, (chunk + 1) * BLOCK_D) if d < D]


def starting_at(start):
    """Right but for where it starts."""

    def attempt(program, block_idx, pos, strides, D, BLOCK_D):
        return [start(program, block_idx, pos, *strides) + d for d in right_lanes(program[2], D, BLOCK_D)]

    return attempt


def with_lanes(lanes):
    """Right but for the numbers of the head that it stores."""

    def attempt(program, block_idx, pos, strides, D, BLOCK_D):
        start = right_start(program, block_idx, pos, *strides)
        return [start + d for d in lanes(program[2], D, BLOCK_D)]

    return attempt


def in_a_dense_cache(program, block_idx, pos, strides, D, BLOCK_D):
    """As if slots lay behind each other, or heads."""
    n, h, t = strides
    start = block_idx[program[0]] * n + program[1] * h + pos * (D if t < h else h)
    return [start + d for d in right_lanes(program[2], D, BLOCK_D)]


def looks_up_twice(program, block_idx, pos, strides, D, BLOCK_D):
    return offsets((block_idx[program[0]], *program[1:]), block_idx, pos, strides, D, BLOCK_D)


def in_32_bits(**arguments):
    return np.array(offsets(**arguments)).astype(np.int32)


WRONG_OFFSETS = {
    "takes the request for the block": (
        starting_at(lambda p, blocks, pos, n, h, t: p[0] * n + p[1] * h + pos * t),
        "its block, block_idx[1]",
    ),
    "looks for the request among the blocks": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks.index(p[0]) * n + p[1] * h + pos * t),
        "raised ValueError",
    ),
    "forgets the block": (
        starting_at(lambda p, blocks, pos, n, h, t: p[1] * h + pos * t),
        "3 * strides[0]",
    ),
    "forgets the head": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * n + pos * t),
        "strides[1] behind the one before",
    ),
    "takes the piece for the head": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * n + p[2] * h + pos * t),
        "The second number of a program is its head",
    ),
    "swaps request and head": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[1]] * n + p[0] * h + pos * t),
        "its block, block_idx[1]",
    ),
    "forgets the slot": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * n + p[1] * h),
        "`pos` is the slot in the block",
    ),
    "counts slots in numbers": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * n + p[1] * h + pos),
        "slots are strides[2] apart",
    ),
    "swaps the strides of heads and slots": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * n + p[1] * t + pos * h),
        "each head is strides[1] behind",
    ),
    "reads the strides backwards": (
        starting_at(lambda p, blocks, pos, n, h, t: blocks[p[0]] * t + p[1] * h + pos * n),
        "Block 3 begins 3 * strides[0]",
    ),
    "assumes dense slots": (in_a_dense_cache, "strides[1] is less than strides[2]"),
    "sorts the strides": (
        lambda strides, **rest: offsets(strides=sorted(strides, reverse=True), **rest),
        "strides[1] is less than strides[2]",
    ),
    "looks the block up twice": (looks_up_twice, "its block, block_idx[1]"),
    "masks nothing": (
        with_lanes(lambda chunk, D, BLOCK_D: range(chunk * BLOCK_D, (chunk + 1) * BLOCK_D)),
        "the last two from being stored",
    ),
    "masks one too few": (
        with_lanes(
            lambda chunk, D, BLOCK_D: [d for d in range(chunk * BLOCK_D, (chunk + 1) * BLOCK_D) if d <= D]
        ),
        "the last two from being stored",
    ),
    "stores the whole head": (with_lanes(lambda chunk, D, BLOCK_D: range(D)), "piece 1 begins at d"),
    "forgets the piece": (
        with_lanes(lambda chunk, D, BLOCK_D: [d for d in range(BLOCK_D) if d < D]),
        "piece 1 begins at d = BLOCK_D",
    ),
    "begins pieces every D numbers": (
        with_lanes(lambda chunk, D, BLOCK_D: [d for d in range(chunk * D, chunk * D + BLOCK_D) if d < D]),
        "piece 1 begins at d = BLOCK_D",
    ),
    "masks the lane": (
        with_lanes(lambda chunk, D, BLOCK_D: [chunk * BLOCK_D + i for i in range(BLOCK_D) if i < D]),
        "the mask is about d",
    ),
    "stops at the end of the head, begins nowhere": (
        with_lanes(lambda chunk, D, BLOCK_D: range(min(D, (chunk + 1) * BLOCK_D))),
        "piece 1 begins at d = BLOCK_D",
    ),
    "stores the highest first": (
        with_lanes(lambda chunk, D, BLOCK_D: right_lanes(chunk, D, BLOCK_D)[::-1]),
        "the lowest d first",
    ),
    "gives the first alone": (lambda **a: offsets(**a)[0], "where a list or a tuple was expected"),
    "gives the first and the last": (lambda **a: [offsets(**a)[0], offsets(**a)[-1]], "a list of them all"),
    "gives the first and how many": (lambda **a: (offsets(**a)[0], len(offsets(**a))), "list of them all"),
    "gives a set": (lambda **a: set(offsets(**a)), "a set, where a list or a tuple was expected"),
    "gives a mask beside them": (
        lambda **a: (offsets(**a), [True] * len(offsets(**a))),
        "a list of them all",
    ),
    "adds in 32 bits": (in_32_bits, "no longer fits into 32 bits"),
    "gives nothing back": (lambda **a: None, "A function without `return` gives None"),
    "changes its argument": (
        lambda program, block_idx, **a: block_idx.clear(),
        "changed its argument block_idx to []",
    ),
    "knows two pieces": (
        with_lanes(lambda chunk, D, BLOCK_D: right_lanes(min(chunk, 1), D, BLOCK_D)),
        "(all 8 cases passed, but not a random one)",
    ),
}


def counting(is_full):
    """An answer to `full_batch_steps` that counts steps: of `ps`, the positions of those that are left."""

    def attempt(positions, steps_left, block_size):
        steps = range(max(steps_left))
        alive = [[p + i for p, n in zip(positions, steps_left, strict=True) if i < n] for i in steps]
        return sum(is_full(ps, block_size) for ps in alive)

    return attempt


def slots(ps, s):
    return [p % s for p in ps]


def if_equal(count):
    """All or nothing, by the slots at the beginning."""
    return lambda positions, steps_left, block_size: (
        count(steps_left) if len(set(slots(positions, block_size))) == 1 else 0
    )


def forgets_who_ended(positions, steps_left, block_size):
    return full_batch_steps(positions, [max(steps_left)] * len(positions), block_size)


def stops_at_the_first_end(positions, steps_left, block_size):
    return full_batch_steps(positions, [min(steps_left)] * len(positions), block_size)


def stays_in_its_block(positions, steps_left, block_size):
    """As if a text's slots went on past the block's end."""
    starts = slots(positions, block_size)
    alive = [[p for p, n in zip(starts, steps_left, strict=True) if i < n] for i in range(max(steps_left))]
    return sum(len({min(p + i, block_size - 1) for p in ps}) == 1 for i, ps in enumerate(alive))


WRONG_STEPS = {
    "never": (lambda **a: 0, "All go from slot to slot together"),
    "always": (lambda steps_left, **a: max(steps_left), "stays three ahead"),
    "the steps that differ": (
        lambda steps_left, **a: max(steps_left) - full_batch_steps(steps_left=steps_left, **a),
        "All go from slot",
    ),
    "asks once, for all steps": (if_equal(max), "ends after 2 steps"),
    "asks once, up to the first end": (if_equal(min), "ends after 2 steps"),
    "forgets who ended": (forgets_who_ended, "ends after 2 steps"),
    "stops at the first end": (stops_at_the_first_end, "ends after 2 steps"),
    "compares positions": (counting(lambda ps, s: len(set(ps)) == 1), "not the position in the text"),
    "compares blocks": (counting(lambda ps, s: len({p // s for p in ps}) == 1), "stays three ahead"),
    "fears boundaries": (
        counting(lambda ps, s: len(set(slots(ps, s))) == 1 and 0 not in slots(ps, s)),
        "A boundary is no exception",
    ),
    "lets all meet at the end of a block": (stays_in_its_block, "In each step look at the requests"),
    "assumes blocks of 64": (
        lambda block_size, **a: full_batch_steps(block_size=64, **a),
        "The block size is an argument",
    ),
    "wants company": (
        counting(lambda ps, s: len(ps) > 1 and len(set(slots(ps, s))) == 1),
        "one request alone is at one slot",
    ),
    "compares first and last": (
        counting(lambda ps, s: ps[0] % s == ps[-1] % s),
        "anywhere in the batch",
    ),
    "compares the first two": (counting(lambda ps, s: len(set(slots(ps[:2], s))) == 1), "stays three ahead"),
    "counts writes": (
        lambda positions, **a: len(positions) * full_batch_steps(positions=positions, **a),
        "All go from slot to slot together",
    ),
    "one step more": (lambda **a: full_batch_steps(**a) + 1, "All go from slot to slot together"),
    "gives a truth": (lambda **a: full_batch_steps(**a) > 0, "gave True, expected 5"),
    "gives the steps": (lambda **a: list(range(full_batch_steps(**a))), "All go from slot to slot"),
    "gives nothing back": (lambda **a: None, "A function without `return` gives None"),
    "changes its argument": (
        lambda steps_left, **a: steps_left.clear() or 5,
        "changed its argument steps_left to []",
    ),
}


@refused((OFFSETS, WRONG_OFFSETS), (FULL_BATCH_STEPS, WRONG_STEPS))
def test_a_plausible_wrong_answer_is_refused_in_words_of_its_own(exercise, attempt, words):
    assert words in exercise.grade(attempt)


def as_the_kernel(program, block_idx, pos, strides, D, BLOCK_D):
    """A row of lanes, and a mask."""
    d = program[2] * BLOCK_D + np.arange(BLOCK_D)
    return (right_start(program, block_idx, pos, *strides) + d)[d < D]


def as_the_kernel_in_torch(program, block_idx, pos, strides, D, BLOCK_D):
    d = program[2] * BLOCK_D + torch.arange(BLOCK_D)
    return (right_start(program, block_idx, pos, *strides) + d)[d < D]


def as_a_range(program, block_idx, pos, strides, D, BLOCK_D):
    start = right_start(program, block_idx, pos, *strides)
    return range(start + program[2] * BLOCK_D, start + min(D, (program[2] + 1) * BLOCK_D))


@pytest.mark.slow
@accepted(
    (
        OFFSETS,
        {
            "a tuple": lambda **a: tuple(offsets(**a)),
            "a range": as_a_range,
            "an array and a mask": as_the_kernel,
            "a tensor and a mask": as_the_kernel_in_torch,
            "numbers of an array": lambda **a: list(np.array(offsets(**a))),
            "a sorted set": lambda **a: sorted(set(offsets(**a))),
        },
    ),
    (
        FULL_BATCH_STEPS,
        {
            "a set of slots": counting(lambda ps, s: len(set(slots(ps, s))) == 1),
            "all against the first": counting(lambda ps, s: all((p - ps[0]) % s == 0 for p in ps)),
            "the least and the largest": counting(lambda ps, s: min(slots(ps, s)) == max(slots(ps, s))),
            "a whole number of NumPy": lambda **a: np.int64(full_batch_steps(**a)),
            "a tensor": lambda **a: torch.tensor(full_batch_steps(**a)),
        },
    ),
)
def test_a_right_answer_is_right_in_any_clothes(exercise, attempt):
    assert is_right(exercise, attempt)


# --- the exercises against the engine -------------------------------------------------------------------


def test_the_solution_of_offsets_is_where_the_kernel_stores():
    """All programs of a grid together name the numbers that the full-batch write changes, each once."""
    B, H, D, BLOCK_D, pos = 3, 2, 6, 4, 1
    cache = torch.zeros(5, 3, H, D).transpose(1, 2)  # [N, H, block_size, D], strides out of order
    block_idx = torch.tensor([3, 0, 2], dtype=torch.int32)
    new = torch.ones(B, H, D)
    kernels.kv_append_full_batch_plain(cache, torch.zeros_like(cache), new, new, block_idx, pos)
    grid = [(b, h, chunk) for b in range(B) for h in range(H) for chunk in range(2)]
    stored = [o for p in grid for o in offsets(p, block_idx.tolist(), pos, cache.stride()[:3], D, BLOCK_D)]
    in_memory = torch.as_strided(cache, (cache.numel(),), (1,))
    assert sorted(stored) == in_memory.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("lengths", "num_new"), [((5, 5), (4, 4)), ((5, 6), (4, 4)), ((4, 8), (3, 5)), ((5, 6, 9), (6, 2, 6))]
)
def test_the_solution_of_full_batch_steps_is_what_the_engine_does(tiny, lengths, num_new):
    cache = CacheConfig(block_size=4, prefix_cache=False)
    engine = InferenceEngine(tiny, LADDER["03"].options, device="cpu", cache=cache)
    for length, count in zip(lengths, num_new, strict=True):
        engine.add_request([1] * length, SamplingParams(count, stop_on_eos=False))
    with watch.record_writes(engine) as writes:
        while engine.has_work:
            engine.step()
    taken = sum(write.path == "full_batch" for write in writes) / engine.kv_manager.num_layers
    # The prompt's step gives the first new token; each later one is written before the next is chosen.
    assert taken == full_batch_steps(lengths, [count - 1 for count in num_new], 4)
