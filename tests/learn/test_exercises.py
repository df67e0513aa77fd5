"""Every exercise: its solution is right, its empty cell is not attempted, likely mistakes are refused."""

from importlib import import_module

import pytest
import torch

from labkit.learn import Exercise, not_attempted
from labkit.paths import ROOT

FOUND = [
    each
    for path in sorted((ROOT / "labkit" / "learn").glob("*/exercises.py"))
    for each in vars(import_module(f"labkit.learn.{path.parent.name}.{path.stem}")).values()
    if isinstance(each, Exercise)
]
EXERCISES = {exercise.name: exercise for exercise in FOUND}


def as_solved(name, change):
    """The solution's answer, changed."""
    return lambda *given: change(EXERCISES[name].solution(*given), *given)


def count_before_the_write(lengths, blocks, write):
    slots = []
    for block in blocks:
        slots.append(int(lengths[block]))
        lengths[block] += 1
    write(slots)


def wait_for_none(messages, buffers, copy):
    for i, message in enumerate(messages):
        buffers[i % 2][: len(message)] = message
        copy(buffers[i % 2], len(message))


def store_old_keys_at_pads(k_cache, block_table, context_lens, keys):
    """A live request may have its first token where padding points to."""
    size, lens = k_cache.shape[3], context_lens.clamp(min=0).long()
    at = (slice(None), block_table[torch.arange(len(lens)), lens // size].long(), slice(None), lens % size)
    is_live = (context_lens >= 0)[:, None, None, None]
    k_cache[at] = torch.where(is_live, keys.transpose(0, 1), k_cache[at])


def move_all(slots, slot_mapping, token_ids):
    slots.context_lens += 1
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)


def join_without_rescaling(so_far, part):
    acc = [x + y for x, y in zip(so_far[2], part[2], strict=True)]
    return max(so_far[0], part[0]), so_far[1] + part[1], acc


# A likely mistake in each.
WRONG = {
    "kernel_begins": lambda issued, us: [max(t, us * i) for i, t in enumerate(issued)],
    "step_time": lambda kernels, host, gpu, read: (
        kernels * (host + gpu) if read else kernels * max(host, gpu)
    ),
    "locate": lambda position, table, size: (table[position // 4], position % 4),
    "blocks_taken": lambda tokens, shared, size: (
        int(shared or tokens % size == 0) + int(shared and tokens % size == 0)
    ),
    "break_the_row": lambda ids, free: [("replace_last", free[0]), ("replace_last", ids[-1])],
    "blocks_for_a_step": lambda last, lengths, holders, size: sum(
        n in (0, size) or h > 1 for n, h in zip(lengths, holders, strict=True)
    ),
    "plan": as_solved("plan", lambda steps, *_: sorted(steps, reverse=True)),
    "offsets": lambda b, h, ids, slot, strides, D, BLOCK_D: [
        ids[b] * strides[0] + h * strides[1] + slot * D + d for d in range(D)
    ],
    "full_batch_steps": lambda positions, left, size: max(left) * (len(set(positions)) == 1),
    "slot_mapping": as_solved("slot_mapping", lambda mapping, *_: [max(0, slot) for slot in mapping]),
    "append_tokens": count_before_the_write,
    "send_all": wait_for_none,
    "next_places": lambda tables, lens, mapping, size: [
        None if n < 0 else (tables[s][n // size], n % size) for s, n in enumerate(lens[: len(mapping)])
    ],
    "append_all_layers": store_old_keys_at_pads,
    "blocks_needed": lambda sequences, holders, size: sum(
        n % size == 0 or holders[last] > 1 for n, last in sequences
    ),
    "move_on": move_all,
    "choose_sizes": lambda load, count: sorted(load)[-count:],
    "join": join_without_rescaling,
    "fold": as_solved(
        "fold", lambda folded, g, b, w, bias, unit: (folded[0], folded[1], bias or [0.0] * len(w))
    ),
    "deliver": as_solved(
        "deliver", lambda reached, *_: {name: tokens for name, tokens in reached.items() if tokens}
    ),
    "handed_out_at": lambda launch, gpu, accept, steps, ahead: [
        launch + (i + 1) * gpu + accept for i in range(steps)
    ],
    "lanes_end": lambda lanes: [sum(w + b for w, b in lane) for lane in lanes],
    "read_too_early": as_solved("read_too_early", lambda wrong, *_: wrong[:1]),
    "in_order": lambda bits: bits & 0x7FFF,
    "kept_ids": lambda weights, k, dropped: sorted(
        sorted(range(len(weights)), key=lambda i: -weights[i])[: k or None]
    ),
    "whose_row": as_solved("whose_row", lambda found, *_: found or (-1, -1)),
    "last_chunks": lambda lengths, most: [sum(lengths[: i + 1]) // most for i in range(len(lengths))],
    "which_goes": lambda blocks, in_use: min(
        (b for b in blocks if b[0] not in {p for _, p, _ in blocks}), key=lambda b: b[2], default=[None]
    )[0],
    "tokens_computed": as_solved(
        "tokens_computed", lambda computed, texts, size: [c - (c == 1) for c in computed]
    ),
    "limit_bytes": lambda weights, kv, requests, most, prompt, new: (
        (new - 1) * (weights + kv * requests * prompt)
    ),
    "next_rung": as_solved("next_rung", lambda found, parts, floors: (found[0], 1 / found[1])),
    "diagnose": lambda patient: "undo",
}


def test_a_mistake_is_tried_in_every_exercise():
    assert WRONG.keys() == EXERCISES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("exercise", FOUND, ids=lambda exercise: exercise.name)
def test_the_solution_is_right_the_empty_cell_not_attempted_and_a_mistake_is_refused(exercise):
    assert exercise.grade(exercise.solution) == f"{exercise.name}: right, in all 100 random calls."
    assert exercise.grade(lambda *_: not_attempted()) == f"{exercise.name}: not attempted yet."
    verdict = exercise.grade(WRONG[exercise.name])
    assert verdict.startswith(f"{exercise.name}: with ") and exercise.contract in verdict
