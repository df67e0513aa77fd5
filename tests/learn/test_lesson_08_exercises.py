"""The graders of lesson 08: wrong answers are refused in the contract's words, right ones are right."""

import random
from bisect import bisect_left, bisect_right

import numpy as np
import pytest
import torch

from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep, batch_buckets
from labkit.learn import lesson_08, not_attempted
from labkit.learn.lesson_08 import MOVE_ON, WHICH_GRAPH, draw_batch, draw_replays, replayed


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [MOVE_ON, WHICH_GRAPH], ids=lambda e: e.name)
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
    lesson_08.moves_on_once: IN_PLACE.format("context_lens"),
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
    slots = lesson_08.ToySlots(torch.tensor([5, 8, -1]), torch.zeros(3, dtype=torch.int64))
    for _ in range(3):
        lesson_08.moves_on_once(slots, torch.tensor([0, 1]), torch.tensor([7, 9]))
    assert slots.context_lens.tolist() == [8, 11, -1]
    by_name, captured = replayed(lesson_08.moves_on_once, [5, 8], [([0, 1], [7, 9])] * 3)
    assert by_name.context_lens.tolist() == [6, 9, -1]
    assert captured.context_lens.tolist() == [5, 8, -1]


def test_the_solution_moves_slots_as_the_package_does():
    rng = random.Random(1)
    for _ in range(50):
        drawn = draw_replays(rng)
        ours, theirs = (
            lesson_08.ToySlots(
                torch.tensor([*drawn["context_lens"], -1]),
                torch.zeros(len(drawn["context_lens"]) + 1, dtype=torch.int64),
            )
            for _ in range(2)
        )
        for mapping, tokens in drawn["batches"]:
            lesson_08.move_on(ours, torch.tensor(mapping), torch.tensor(tokens))
            DeviceStep(theirs, None, None).advance(torch.tensor(tokens), torch.tensor(mapping))
        assert ours.context_lens.tolist() == theirs.context_lens.tolist()
        assert ours.last_token_ids.tolist() == theirs.last_token_ids.tolist()


# --- which_graph -----------------------------------------------------------------------------------------


def picked(bucket_of, *, family=lambda greedy, drawn: drawn == 0, rows=lambda greedy, drawn: greedy + drawn):
    """An answer with one rule of its own."""

    def which_graph(num_greedy, num_drawn, buckets):
        size = rows(num_greedy, num_drawn)
        bucket = bucket_of(size, buckets)
        return bucket, family(num_greedy, num_drawn), bucket - size

    return which_graph


def smallest(size, buckets):
    return min(b for b in buckets if b >= size)


def half_as_much_again(size, buckets):
    return next(b for b in batch_buckets(1024) if b >= size)


def counts_padding_among_all_buckets(num_greedy, num_drawn, buckets):
    bucket = smallest(num_greedy + num_drawn, buckets)
    return bucket, num_drawn == 0, buckets[-1] - num_greedy - num_drawn


def takes_smaller_buckets_away(num_greedy, num_drawn, buckets):
    while buckets[0] < num_greedy + num_drawn:
        buckets.pop(0)
    return buckets[0], num_drawn == 0, buckets[0] - num_greedy - num_drawn


WRONG_GRAPHS = {
    "the largest": (picked(lambda n, b: n if n in b else b[-1]), "next larger one"),
    "always the largest": (picked(lambda n, b: b[-1]), "nothing is padded"),
    "the one below": (picked(lambda n, b: max(x for x in b if x <= n)), "cannot become more"),
    "the nearest": (picked(lambda n, b: min(b, key=lambda x: abs(x - n))), "cannot become more"),
    "strictly larger": (picked(lambda n, b: b[min(bisect_right(b, n), len(b) - 1)]), "nothing is padded"),
    "a power of 2": (picked(lambda n, b: 2 ** (n - 1).bit_length()), "next power of two"),
    "the engine's own sizes": (picked(half_as_much_again), "look for the bucket in the list"),
    "no bucket": (picked(lambda n, b: n), "cannot become more"),
    "the index": (picked(lambda n, b: bisect_left(b, n)), "nothing is padded"),
    "the majority": (picked(smallest, family=lambda g, d: g > d), "One request that draws is enough"),
    "any greedy": (picked(smallest, family=lambda g, d: g > 0), "One request that draws is enough"),
    "the family reversed": (picked(smallest, family=lambda g, d: d > 0), "nothing is padded"),
    "a family's name": (
        picked(smallest, family=lambda g, d: "drawn" if d else "greedy"),
        "expected (8, True",
    ),
    "greedy rows only": (picked(smallest, rows=lambda g, d: g), "One request that draws is enough"),
    "the larger kind": (picked(smallest, rows=max), "One request that draws is enough"),
    "a row more": (picked(smallest, rows=lambda g, d: g + d + 1), "nothing is padded"),
    "padding of all buckets": (counts_padding_among_all_buckets, "nothing is padded"),
    "rows, not padding": (lambda num_greedy, num_drawn, buckets: (8, True, 8), "nothing is padded"),
    "in another order": (
        lambda num_greedy, num_drawn, buckets: WHICH_GRAPH.solution(num_greedy, num_drawn, buckets)[::-1],
        "nothing is padded",
    ),
    "the bucket alone": (lambda num_greedy, num_drawn, buckets: 8, "where a list or a tuple was expected"),
    "a dict": (
        lambda num_greedy, num_drawn, buckets: {"bucket": 8, "greedy": True, "padding": 0},
        "where a list or a tuple was expected",
    ),
    "nothing": (lambda num_greedy, num_drawn, buckets: None, "A function without `return` gives None"),
    "takes buckets away": (takes_smaller_buckets_away, "changed its argument buckets to [8, 16]"),
    "one name other": (lambda greedy, drawn, buckets: (8, True, 0), "raised TypeError"),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_GRAPHS.values(), ids=WRONG_GRAPHS)
def test_another_graph_is_refused_in_the_contract_s_words(attempt, words):
    assert words in WHICH_GRAPH.grade(attempt)


def right_graph(clothes):
    return lambda **batch: clothes(WHICH_GRAPH.solution(**batch))


RIGHT_GRAPHS = {
    "list": right_graph(list),
    "array": right_graph(np.array),
    "tensor": right_graph(torch.tensor),
    "numbers of NumPy": right_graph(lambda found: tuple(map(np.int64, found))),
    "bisected": picked(lambda n, b: b[bisect_left(b, n)], family=lambda g, d: not d),
    "searched by NumPy": picked(lambda n, b: np.array(b)[np.searchsorted(b, n)]),
    "sorted": picked(lambda n, b: sorted(x for x in b if x >= n)[0], family=lambda g, d: d < 1),
}


@pytest.mark.parametrize("attempt", RIGHT_GRAPHS.values(), ids=RIGHT_GRAPHS)
def test_the_right_graph_is_right_in_any_clothes(attempt):
    assert WHICH_GRAPH.grade(attempt) == f"which_graph: right, all {len(WHICH_GRAPH.cases)} cases."


def test_the_solution_picks_the_graph_that_the_package_replays():
    step = object.__new__(GraphedStep)  # which captures nothing, as there is no GPU
    replayed_keys = []

    class Graph:
        def __init__(self, key):
            self.replay = lambda: replayed_keys.append(key)

    rng = random.Random(1)
    for _ in range(100):
        batch = draw_batch(rng)
        step.buckets = batch["buckets"]
        step.graphs = {(b, g): (Graph((b, g)), torch.zeros(b)) for b in step.buckets for g in (True, False)}
        size = batch["num_greedy"] + batch["num_drawn"]
        step(size, 0, batch["num_drawn"] == 0)
        bucket, is_greedy, padding = WHICH_GRAPH.solution(**batch)
        assert replayed_keys.pop() == (bucket, is_greedy)
        assert padding == bucket - size
