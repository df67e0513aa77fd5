"""The graders of lesson 08: wrong answers are refused in the contract's words, right ones are right."""

import random

import numpy as np
import pytest
import torch

from labkit.engine.step.device import DeviceStep
from labkit.learn import not_attempted
from labkit.learn.lesson_08.exercises import (
    CHOOSE_SIZES,
    MOVE_ON,
    ToySlots,
    draw_load,
    draw_replays,
    move_on,
    moves_on_once,
    replayed,
    rows_padded,
)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [MOVE_ON, CHOOSE_SIZES], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda *_, **__: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- move_on: with everything right but what a name says -------------------------------------------------


def remember(slots, slot_mapping, token_ids):
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)


def move(slots, slot_mapping):
    lens = slots.context_lens[slot_mapping]
    slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)


def reads_it_as_python(slots, slot_mapping, token_ids):
    for slot, token_id in zip(slot_mapping.tolist(), token_ids.tolist(), strict=True):
        if slots.context_lens[slot] >= 0:
            slots.context_lens[slot] += 1
        slots.last_token_ids[slot] = max(token_id, 0)


def goes_through_the_tensor(slots, slot_mapping, token_ids):
    for row, slot in enumerate(slot_mapping):
        slots.context_lens[slot] += slots.context_lens[slot] >= 0
        slots.last_token_ids[slot] = token_ids[row].clamp(min=0)


def asks_whether_anybody_is_there(slots, slot_mapping, token_ids):
    if (slots.context_lens[slot_mapping] >= 0).any():
        move(slots, slot_mapping)
    remember(slots, slot_mapping, token_ids)


def asks_whether_all_are_equal(slots, slot_mapping, token_ids):
    if torch.equal(token_ids, token_ids.clamp(min=0)):
        remember(slots, slot_mapping, token_ids)
    else:
        remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping)


def takes_the_tokens_to_the_host(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids.cpu())
    move(slots, slot_mapping)


def names_the_host(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids.to(device="cpu"))
    move(slots, slot_mapping)


def goes_through_numpy(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, torch.from_numpy(np.maximum(token_ids.numpy(), 0)))
    move(slots, slot_mapping)


def picks_by_a_mask(slots, slot_mapping, token_ids):
    is_there = slots.context_lens[slot_mapping] >= 0
    slots.context_lens[slot_mapping[is_there]] += 1
    remember(slots, slot_mapping, token_ids)


def picks_unique_slots(slots, slot_mapping, token_ids):
    slots.context_lens[torch.unique(slot_mapping)] += 1
    slots.context_lens[-1] = -1
    remember(slots, slot_mapping, token_ids)


def prints(slots, slot_mapping, token_ids):
    print(slots.context_lens)
    move(slots, slot_mapping)
    remember(slots, slot_mapping, token_ids)


def makes_tokens_anew(slots, slot_mapping, token_ids):
    slots.last_token_ids = slots.last_token_ids.clone()
    remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping)


def renames_lengths_at_the_end(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping)
    slots.context_lens = slots.context_lens.clone()


def adds_and_renames(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    one = torch.zeros_like(slots.context_lens)
    one[slot_mapping] = 1
    slots.context_lens = slots.context_lens + one * (slots.context_lens >= 0)


def swaps_the_data(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    lens = slots.context_lens.clone()
    lens[slot_mapping] += lens[slot_mapping] >= 0
    slots.context_lens.data = lens


def leaves_a_list(slots, slot_mapping, token_ids):
    slots.last_token_ids = [0] * len(slots.last_token_ids)
    move(slots, slot_mapping)


def forgets_the_lengths(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)


def forgets_the_tokens(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)


def works_on_a_copy(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    lens += lens >= 0
    remember(slots, slot_mapping, token_ids)


def only_returns(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    return torch.where(lens < 0, lens, lens + 1), token_ids.clamp(min=0)


def counts_twice(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    move(slots, slot_mapping)
    remember(slots, slot_mapping, token_ids)


def knows_the_rows(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    slots.last_token_ids[: len(token_ids)] = token_ids.clamp(min=0)


def gives_padding_a_token(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    slots.context_lens[slot_mapping] += 1


def leaves_padding_at_0(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    slots.context_lens[slot_mapping] = slots.context_lens[slot_mapping].clamp(min=-1) + 1
    slots.context_lens[-1] = 0


def adds_up_padding(slots, slot_mapping, token_ids):
    slots.context_lens.index_add_(0, slot_mapping, torch.ones_like(slot_mapping))
    slots.context_lens[-1] -= 1
    remember(slots, slot_mapping, token_ids)


def moves_everybody_on(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    slots.context_lens += slots.context_lens >= 0


def clears_the_others(slots, slot_mapping, token_ids):
    slots.last_token_ids.zero_()
    remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping)


def does_not_clamp(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    slots.last_token_ids[slot_mapping] = token_ids


def clamps_to_1(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=1)


def makes_them_positive(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    slots.last_token_ids[slot_mapping] = token_ids.abs()


def marks_padding(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    remember(slots, slot_mapping, token_ids)
    slots.last_token_ids[-1] = -1


def keeps_the_last_token_where_there_is_none(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    old = slots.last_token_ids[slot_mapping]
    slots.last_token_ids[slot_mapping] = torch.where(token_ids < 0, old, token_ids)


def stays_where_there_is_no_token(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    slots.context_lens[slot_mapping] = torch.where((lens < 0) | (token_ids < 0), lens, lens + 1)
    remember(slots, slot_mapping, token_ids)


def takes_0_for_padding(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    slots.context_lens[slot_mapping] = lens + (lens > 0)
    remember(slots, slot_mapping, token_ids)


def clamps_what_it_was_given(slots, slot_mapping, token_ids):
    slots.last_token_ids[slot_mapping] = token_ids.clamp_(min=0)
    move(slots, slot_mapping)


def clears_the_mapping(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping)
    slot_mapping.zero_()


def knows_two_slots(slots, slot_mapping, token_ids):
    move(slots, slot_mapping.clamp(max=2))
    remember(slots, slot_mapping, token_ids)


def moves_the_first_row_alone(slots, slot_mapping, token_ids):
    remember(slots, slot_mapping, token_ids)
    move(slots, slot_mapping[:1])


def takes_an_element_for_its_number(slots, slot_mapping, token_ids):
    for row in range(len(slot_mapping)):
        slots.context_lens[slot_mapping[row]] += 1
        slots.last_token_ids[slot_mapping[row]] = token_ids[row].clamp(min=0)
    slots.context_lens[-1] = -1


def counts_by_bincount(slots, slot_mapping, token_ids):
    slots.context_lens += torch.bincount(slot_mapping, minlength=len(slots.context_lens))
    slots.context_lens[-1] = -1
    remember(slots, slot_mapping, token_ids)


def adds_by_a_mask(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    lens.index_put_((lens >= 0,), torch.tensor(1), accumulate=True)
    slots.context_lens[slot_mapping] = lens
    remember(slots, slot_mapping, token_ids)


def writes_it_into_a_text(slots, slot_mapping, token_ids):
    move(slots, slot_mapping)
    remember(slots, slot_mapping, token_ids)
    return f"{slot_mapping}"


NO_QUESTIONS = "A capture cannot wait for an answer"
IN_PLACE = "leaves another tensor in slots.{}. A graph reads and writes at the addresses of the capture"

WRONG_MOVES = {
    reads_it_as_python: NO_QUESTIONS,
    goes_through_the_tensor: NO_QUESTIONS,
    asks_whether_anybody_is_there: NO_QUESTIONS,
    asks_whether_all_are_equal: NO_QUESTIONS,
    takes_the_tokens_to_the_host: NO_QUESTIONS,
    names_the_host: NO_QUESTIONS,
    goes_through_numpy: NO_QUESTIONS,
    picks_by_a_mask: NO_QUESTIONS,
    picks_unique_slots: NO_QUESTIONS,
    prints: NO_QUESTIONS,
    counts_by_bincount: NO_QUESTIONS,
    adds_by_a_mask: NO_QUESTIONS,
    writes_it_into_a_text: NO_QUESTIONS,
    moves_on_once: IN_PLACE.format("context_lens"),
    makes_tokens_anew: IN_PLACE.format("last_token_ids"),
    renames_lengths_at_the_end: IN_PLACE.format("context_lens"),
    adds_and_renames: IN_PLACE.format("context_lens"),
    swaps_the_data: IN_PLACE.format("context_lens"),
    leaves_a_list: IN_PLACE.format("last_token_ids"),
    forgets_the_lengths: "Every slot that is mapped moves on by one token",
    forgets_the_tokens: "A slot remembers the token of the row",
    works_on_a_copy: "Every slot that is mapped moves on by one token",
    only_returns: "Every slot that is mapped moves on by one token",
    counts_twice: "Every slot that is mapped moves on by one token",
    moves_the_first_row_alone: "Every slot that is mapped moves on by one token",
    takes_an_element_for_its_number: NO_QUESTIONS,
    knows_the_rows: "can change from replay to replay",
    gives_padding_a_token: "Rows that pad a batch are mapped to the padding slot",
    leaves_padding_at_0: "The padding slot, the last one, stays at -1",
    adds_up_padding: "The padding slot, the last one, stays at -1",
    moves_everybody_on: "slots that are not mapped do not move",
    clears_the_others: "keeps its length and its last token",
    knows_two_slots: "Slots that are mapped, and only those, move on",
    does_not_clamp: "clamp it",
    clamps_to_1: "clamp it",
    makes_them_positive: "clamp it",
    marks_padding: "also in the padding slot: clamp it",
    keeps_the_last_token_where_there_is_none: "remember their row's (0 for -1), in every replay",
    stays_where_there_is_no_token: "clamp it",
    takes_0_for_padding: "A length of 0 is that of a request without tokens so far",
    clamps_what_it_was_given: "your function changes token_ids, which is read again after it",
    clears_the_mapping: "your function changes slot_mapping, which is read again after it",
}


@pytest.mark.parametrize(
    ("attempt", "words"), WRONG_MOVES.items(), ids=lambda each: getattr(each, "__name__", "")
)
def test_what_a_graph_must_not_hold_is_refused_in_the_contract_s_words(attempt, words):
    assert words in MOVE_ON.grade(attempt)


def with_index_operators(slots, slot_mapping, token_ids):
    slots.last_token_ids.index_copy_(0, slot_mapping, token_ids.clamp_min(0))
    slots.context_lens.index_copy_(0, slot_mapping, (slots.context_lens[slot_mapping] + 1))
    slots.context_lens[-1:].fill_(-1)


def by_a_number_for_each_slot(slots, slot_mapping, token_ids):
    is_mapped = torch.zeros_like(slots.context_lens)
    is_mapped[slot_mapping] = 1
    slots.context_lens += is_mapped * (slots.context_lens >= 0)
    slots.last_token_ids.scatter_(0, slot_mapping, torch.relu(token_ids))


def puts_padding_back(slots, slot_mapping, token_ids):
    slots.context_lens[slot_mapping] += 1
    slots.context_lens[-1] = -1
    slots.last_token_ids[slot_mapping] = torch.where(token_ids < 0, 0, token_ids)


def lets_padding_alone(slots, slot_mapping, token_ids):
    lens, last_ids = slots.context_lens[slot_mapping], slots.last_token_ids[slot_mapping]
    slots.context_lens[slot_mapping] = lens + (lens >= 0).to(lens.dtype)
    slots.last_token_ids[slot_mapping] = torch.where(lens < 0, last_ids, token_ids * (token_ids > 0))


def fills_by_a_mask(slots, slot_mapping, token_ids):
    lens = slots.context_lens[slot_mapping]
    new = lens + 1
    new[lens < 0] = -1
    slots.context_lens[slot_mapping] = new
    slots.last_token_ids[slot_mapping] = token_ids.masked_fill(token_ids < 0, 0).to(token_ids.device)


def copies_back(slots, slot_mapping, token_ids):
    lens, last_ids = slots.context_lens.clone(), slots.last_token_ids.clone()
    lens[slot_mapping] += lens[slot_mapping] >= 0
    last_ids[slot_mapping] = torch.maximum(token_ids, torch.tensor(0))
    slots.context_lens.copy_(lens)
    slots.last_token_ids.copy_(last_ids)
    return "nobody asks"


def in_place_by_its_own_name(slots, slot_mapping, token_ids):
    slots.context_lens[slot_mapping] += slots.context_lens[slot_mapping] >= 0
    slots.last_token_ids[:] = slots.last_token_ids.index_put((slot_mapping,), token_ids.clamp(0))


RIGHT_MOVES = [
    with_index_operators,
    by_a_number_for_each_slot,
    puts_padding_back,
    lets_padding_alone,
    fills_by_a_mask,
    copies_back,
    in_place_by_its_own_name,
]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_MOVES, ids=lambda attempt: attempt.__name__)
def test_whatever_moves_the_slots_in_place_is_right(attempt):
    assert MOVE_ON.grade(attempt) == f"move_on: right, all {len(MOVE_ON.cases)} cases."


def test_what_is_wrong_replayed_is_right_when_called():
    slots = ToySlots(torch.tensor([5, 8, -1]), torch.zeros(3, dtype=torch.int64))
    for _ in range(3):
        moves_on_once(slots, torch.tensor([0, 1]), torch.tensor([7, 9]))
    assert slots.context_lens.tolist() == [8, 11, -1]
    by_name, captured = replayed(moves_on_once, [5, 8], [([0, 1], [7, 9])] * 3)
    assert by_name.context_lens.tolist() == [6, 9, -1]
    assert captured.context_lens.tolist() == [5, 8, -1]


def test_the_solution_moves_slots_as_the_package_does():
    rng = random.Random(1)
    for _ in range(50):
        drawn = draw_replays(rng)
        ours, theirs = (
            ToySlots(
                torch.tensor([*drawn["context_lens"], -1]),
                torch.zeros(len(drawn["context_lens"]) + 1, dtype=torch.int64),
            )
            for _ in range(2)
        )
        for mapping, tokens in drawn["batches"]:
            move_on(ours, torch.tensor(mapping), torch.tensor(tokens))
            DeviceStep(theirs, None, None).advance(torch.tensor(tokens), torch.tensor(mapping))
        assert ours.context_lens.tolist() == theirs.context_lens.tolist()
        assert ours.last_token_ids.tolist() == theirs.last_token_ids.tolist()


# --- choose_sizes ----------------------------------------------------------------------------------------


def best_first(load, num_sizes):
    """Adds what saves most at the moment, which may be regretted."""
    sizes = [max(load)]
    while len(sizes) < min(num_sizes, len(load)):
        rest = [size for size in load if size not in sizes]
        sizes = sorted([*sizes, min(rest, key=lambda size: rows_padded(load, sorted([*sizes, size])))])
    return sizes


def evenly_spaced(load, num_sizes):
    return sorted({-(-max(load) * (i + 1) // num_sizes) for i in range(num_sizes)})


def without_weights(load, num_sizes):
    return CHOOSE_SIZES.solution(dict.fromkeys(load, 1), num_sizes)


def the_most_frequent(load, num_sizes):
    return sorted(sorted(load, key=load.get)[-num_sizes:])


def the_most_frequent_and_the_largest(load, num_sizes):
    rest = sorted(set(load) - {max(load)}, key=load.get)
    return [*rest[len(rest) - num_sizes + 1 :], max(load)] if num_sizes > 1 else [max(load)]


def empties_the_load(load, num_sizes):
    sizes = CHOOSE_SIZES.solution(load, num_sizes)
    load.clear()
    return sizes


WRONG_SIZES = {
    "one for all": (lambda load, num_sizes: [max(load)], "With a bucket for each batch size"),
    "every size": (lambda load, num_sizes: sorted(load), "are 2 buckets, at most 1 are allowed"),
    "the smallest": (lambda load, num_sizes: sorted(load)[:num_sizes], "no room for a batch of 8"),
    "the largest": (lambda load, num_sizes: sorted(load)[-num_sizes:], "near each other can share a bucket"),
    "powers of two": (lambda load, num_sizes: [2**i for i in range(num_sizes)], "no room for a batch of 8"),
    "evenly spaced": (evenly_spaced, "With a bucket for each batch size"),
    "without weights": (without_weights, "weigh by the steps"),
    "the most frequent": (the_most_frequent, "near each other can share a bucket"),
    "those and the largest": (the_most_frequent_and_the_largest, "near each other can share a bucket"),
    "best first": (best_first, "the one that pads the fewest rows"),
    "always too few": (lambda load, num_sizes: sorted(load)[-1:], "With a bucket for each batch size"),
    "the rows, not the sizes": (lambda load, num_sizes: 0, "where a list of whole numbers is expected"),
    "nothing": (lambda load, num_sizes: None, "None, where a list of whole numbers is expected"),
    "an empty list": (lambda load, num_sizes: [], "no room for a batch of 8"),
    "halves": (lambda load, num_sizes: [8.0], "where a list of whole numbers is expected"),
    "empties the load": (empties_the_load, "changed its argument load to {}"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_buckets_that_pad_more_are_refused_in_the_contract_s_words(attempt, words):
    assert words in CHOOSE_SIZES.grade(attempt)


def one_by_one(load, num_sizes):
    """Takes the bucket away whose rows cost least to pad; right for two sizes, so it asks the solution."""
    return tuple(reversed(CHOOSE_SIZES.solution(load, num_sizes)))


def by_dynamic_programming(load, num_sizes):
    sizes = sorted(load)
    best = {(0, 0): (0, [])}
    for end in range(1, len(sizes) + 1):
        for used in range(1, num_sizes + 1):
            options = [
                (
                    cost + sum(load[s] * (sizes[end - 1] - s) for s in sizes[start:end]),
                    [*chosen, sizes[end - 1]],
                )
                for (start, before), (cost, chosen) in best.items()
                if before == used - 1 and start < end
            ]
            if options:
                best[end, used] = min(options)
    return min(found for (end, _), found in best.items() if end == len(sizes))[1]


RIGHT_SIZES = {
    "backwards, a tuple": one_by_one,
    "dynamic programming": by_dynamic_programming,
    "array": lambda load, num_sizes: np.array(CHOOSE_SIZES.solution(load, num_sizes)),
    "tensor": lambda load, num_sizes: torch.tensor(CHOOSE_SIZES.solution(load, num_sizes)),
    "a set": lambda load, num_sizes: set(CHOOSE_SIZES.solution(load, num_sizes)),
    "numbers of NumPy": lambda load, num_sizes: list(map(np.int64, CHOOSE_SIZES.solution(load, num_sizes))),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_SIZES.values(), ids=RIGHT_SIZES)
def test_buckets_that_pad_least_are_right_in_any_clothes(attempt):
    assert CHOOSE_SIZES.grade(attempt) == f"choose_sizes: right, all {len(CHOOSE_SIZES.cases)} cases."


def test_no_other_choice_pads_less():
    rng = random.Random(2)
    for _ in range(20):
        load, num_sizes = draw_load(rng).values()
        found = rows_padded(load, CHOOSE_SIZES.solution(load, num_sizes))
        assert found == rows_padded(load, by_dynamic_programming(load, num_sizes))
