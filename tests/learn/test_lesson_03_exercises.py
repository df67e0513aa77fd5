"""The exercises of lesson 03: wrong answers get their own words, right ones are right in any clothes."""

import numpy as np
import pytest
import torch
from exercise_helpers import accepted, is_right, refused

from labkit import LADDER, CacheConfig, InferenceEngine, kernels, watch
from labkit.learn import lesson_03, not_attempted
from labkit.learn.lesson_03 import OFFSETS, WHICH_PATH, offsets, which_path

EXERCISES = pytest.mark.parametrize("exercise", [OFFSETS, WHICH_PATH], ids=lambda e: e.name)


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


def full_if(condition):
    """An answer to `which_path`. `B` is the batch size, `ps` are the positions, `s` the block size."""

    def attempt(batch_size, positions, block_size):
        return "full_batch" if condition(batch_size, positions, block_size) else "generic"

    return attempt


def slots(ps, s):
    return [p % s for p in ps]


def whole_and(condition):
    """The whole batch is written, and a condition on the slots."""
    return full_if(lambda B, ps, s: len(ps) == B and condition(slots(ps, s)))


WRONG_PATHS = {
    "never full": (full_if(lambda B, ps, s: False), "one number says it"),
    "always full": (full_if(lambda B, ps, s: True), "one is enough"),
    "the other way round": (full_if(lambda *a: which_path(*a) == "generic"), "one number says it"),
    "looks at the batch alone": (full_if(lambda B, ps, s: len(ps) == B), "one is enough"),
    "forgets the batch": (full_if(lambda B, ps, s: len(set(slots(ps, s))) == 1), "Row b of key_new"),
    "compares positions": (full_if(lambda B, ps, s: len(ps) == B and len(set(ps)) == 1), "in the text"),
    "compares blocks": (
        full_if(lambda B, ps, s: len(ps) == B and len({p // s for p in ps}) == 1),
        "one is enough",
    ),
    "fears boundaries": (whole_and(lambda ss: len(set(ss)) == 1 and 0 not in ss), "no exception"),
    "wants boundaries": (whole_and(lambda ss: set(ss) == {0}), "one number says it"),
    "wants company": (whole_and(lambda ss: len(ss) > 1 and len(set(ss)) == 1), "agrees with itself"),
    "assumes blocks of 64": (full_if(lambda B, ps, s: which_path(B, ps, 64) == "full_batch"), "an argument"),
    "compares the first two": (whole_and(lambda ss: ss[:1] * 2 == ss[:2] or len(ss) == 1), "one is enough"),
    "compares first and last": (whole_and(lambda ss: ss[0] == ss[-1]), "anywhere in the batch"),
    "compares the last two": (whole_and(lambda ss: ss[-1:] == ss[-2:-1] or len(ss) == 1), "anywhere in the"),
    "divides the sum": (whole_and(lambda ss: sum(ss) % len(ss) == 0), "each must be equal"),
    "compares the first with the average": (
        whole_and(lambda ss: ss[0] * len(ss) == sum(ss)),
        "each must be equal",
    ),
    "wants most of them": (whole_and(lambda ss: ss.count(ss[0]) > len(ss) / 2), "one is enough"),
    "looks for a second in the batch": (
        whole_and(lambda ss: len(ss) == 1 or all(ss.count(x) > 1 for x in ss)),
        "Each slot occurs twice here",
    ),
    "looks at the first alone, where the others are at a boundary": (
        whole_and(lambda ss: len(set(ss)) == 1 or not any(ss[1:])),
        "(all 10 cases passed, but not a random one)",
    ),
    "wants rising slots": (whole_and(lambda ss: ss == sorted(ss)), "one is enough"),
    "looks every second up": (whole_and(lambda ss: len(set(ss[::2])) == 1), "one is enough"),
    "takes a missing one for equal": (
        full_if(lambda B, ps, s: len(ps) >= B - 1 and len(set(slots(ps, s))) == 1),
        "Row b of key_new",
    ),
    "names another path": (lambda **a: which_path(**a).replace("full_batch", "identity_pos"), "one number"),
    "spells it with a blank": (lambda **a: which_path(**a).replace("_", " "), "gave 'full batch', expected"),
    "gives a truth": (lambda **a: which_path(**a) == "full_batch", "gave True, expected 'full_batch'"),
    "gives nothing back": (lambda **a: None, "A function without `return` gives None"),
    "gives one a request": (lambda **a: [which_path(**a)] * a["batch_size"], "one number says it"),
    "changes its argument": (
        lambda positions, **a: positions.sort(reverse=True) or which_path(positions=positions, **a),
        "changed its argument positions",
    ),
}


@refused((OFFSETS, WRONG_OFFSETS), (WHICH_PATH, WRONG_PATHS))
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
        WHICH_PATH,
        {
            "a set of slots": whole_and(lambda ss: len(set(ss)) == 1),
            "all against the first": whole_and(lambda ss: all(x == ss[0] for x in ss)),
            "the least and the largest": whole_and(lambda ss: min(ss) == max(ss)),
            "neighbours": whole_and(lambda ss: ss[1:] == ss[:-1]),
            "an array": whole_and(lambda ss: np.ptp(np.array(ss)) == 0),
            "a tensor": whole_and(lambda ss: torch.tensor(ss).unique().numel() == 1),
            "text of NumPy": lambda **a: np.array(["generic", which_path(**a)])[1],
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
    stored = [
        o for p in grid for o in lesson_03.offsets(p, block_idx.tolist(), pos, cache.stride()[:3], D, BLOCK_D)
    ]
    in_memory = torch.as_strided(cache, (cache.numel(),), (1,))
    assert sorted(stored) == in_memory.nonzero().flatten().tolist()


@pytest.mark.parametrize("lengths", [(5,), (5, 6), (4, 8), (7,)])
def test_the_solution_of_which_path_is_what_the_engine_does(tiny, lengths):
    cache = CacheConfig(block_size=4, prefix_cache=False)
    engine = InferenceEngine(tiny, LADDER["03"].options, device="cpu", cache=cache)
    with watch.steady_decode(engine, watch.steady_prompts(3, lengths), warmup_steps=0):
        positions = [s.num_tokens for s in engine.scheduler.running.values()]
        with watch.record_writes(engine) as writes:
            engine.step()
    assert {write.path for write in writes} == {lesson_03.which_path(3, positions, 4)}
