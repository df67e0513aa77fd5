"""Lesson 08's exercises: slots that a graph can move on, and buckets for a load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

import torch
from torch import Tensor

from labkit.learn.exercise import BrokenContract, Exercise, answer_of, check_unchanged
from labkit.learn.lesson_08.cost import bucket_of
from labkit.learn.lesson_08.graphs import is_host_read
from labkit.watch import ToyGraph


@dataclass
class ToySlots:
    """Two tensors of `DeviceSlots` that a step advances, [num_slots + 1]; the last slot is padding's."""

    context_lens: Tensor
    last_token_ids: Tensor


def move_on(slots: ToySlots, slot_mapping: Tensor, token_ids: Tensor) -> None:
    """Advance the mapped slots by a token each, as `DeviceStep.advance` does: in place, asking nothing."""
    lens = slots.context_lens[slot_mapping]
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)


def replayed(
    step: Callable[[ToySlots, Tensor, Tensor], object],
    context_lens: Sequence[int],
    batches: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[ToySlots, ToySlots]:
    """Capture `step` while there are no requests, as the engine does, and replay it for each of some batches.

    batches: (slots, token ids) of each, in rows of equal number. Returns the slots afterwards twice: the
    tensors that now have the slots' names, and those at the addresses of the capture, which are all that a
    graph and its host share. Raises BrokenContract if the host is asked, or the batch is changed.
    """
    padding_slot = len(context_lens)
    slots = ToySlots(torch.full((padding_slot + 1,), -1), torch.zeros(padding_slot + 1, dtype=torch.int64))
    captured = ToySlots(slots.context_lens.detach(), slots.last_token_ids.detach())
    slot_mapping = torch.full((len(batches[0][0]),), padding_slot)
    token_ids = torch.zeros_like(slot_mapping)
    with torch.inference_mode(), ToyGraph() as graph:
        step(slots, slot_mapping, token_ids)
    if any(map(is_host_read, graph.launches)):
        raise BrokenContract(
            "your function lets the host ask what a tensor holds. A capture cannot wait for an answer: no "
            "`.item()`, `.tolist()`, `.cpu()` or `int()`, no `print`, no `if` or `for` over what a tensor "
            "holds, and no elements picked by a mask, since their number is a question, too."
        )
    captured.context_lens[:padding_slot] = torch.tensor(context_lens)  # the requests join
    captured.context_lens[padding_slot], captured.last_token_ids[:] = -1, 0
    for mapped, tokens in batches:
        slot_mapping.copy_(torch.tensor(mapped))
        token_ids.copy_(torch.tensor(tokens))
        graph.replay()
        check_unchanged(
            {"slot_mapping": slot_mapping.tolist(), "token_ids": token_ids.tolist()},
            {"slot_mapping": list(mapped), "token_ids": list(tokens)},
        )
    return slots, captured


def play_move_on(
    attempt: Callable, context_lens: Sequence[int], batches: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> dict[str, object]:
    """What a graph of the attempt leaves at the slots' addresses. Raises BrokenContract for new tensors."""
    slots, captured = replayed(attempt, context_lens, batches)
    for name, tensor in vars(captured).items():
        now = getattr(slots, name)
        if not isinstance(now, Tensor) or now.data_ptr() != tensor.data_ptr():
            raise BrokenContract(
                f"your function leaves another tensor in slots.{name}. A graph reads and writes at the "
                "addresses of the capture: a tensor that is made anew and given the old one's name is not "
                "where the next replay looks. Write in place."
            )
    *last_ids, of_padding = captured.last_token_ids.tolist()
    return {
        "context_lens": captured.context_lens.tolist(),
        "last_token_ids, without padding": last_ids,
        "the padding slot's last token is an index": of_padding >= 0,
    }


def draw_replays(rng: Random) -> dict[str, object]:
    """Draw requests in some of the slots, and batches of some of them, padded to the same number of rows."""
    num_slots = rng.randint(1, 6)
    num_rows = rng.randint(1, num_slots + 1)
    running = rng.sample(range(num_slots), rng.randint(1, num_slots))
    batches = []
    for _ in range(rng.randint(1, 4)):
        mapped = rng.sample(running, rng.randint(1, min(num_rows, len(running))))
        mapped += [num_slots] * (num_rows - len(mapped))
        batches.append((mapped, [rng.choice([-1, 0, rng.randint(1, 50256)]) for _ in mapped]))
    lens = [rng.choice([0, rng.randint(1, 1023)]) if slot in running else -1 for slot in range(num_slots)]
    return {"context_lens": lens, "batches": batches}


MOVE_ON = Exercise(
    solution=move_on,
    draw=draw_replays,
    contract="In every replay the mapped slots, and only those, move on by one token and remember their "
    "row's token (0 for -1). The padding slot's length stays -1.",
    play=play_move_on,
)


def choose_sizes(load: dict[int, int], num_sizes: int) -> list[int]:
    """The at most `num_sizes` buckets that pad the fewest rows. load: steps, by their batch size."""
    *smaller, largest = sorted(load)  # a bucket between two batch sizes pads more than the lower of them
    num_smaller = min(num_sizes - 1, len(smaller))
    choices = ([*chosen, largest] for chosen in combinations(smaller, num_smaller))
    return min(choices, key=lambda sizes: rows_padded(load, sizes))


def rows_padded(load: Mapping[int, int], sizes: Sequence[int]) -> int:
    """How many rows of all the steps of a load are padding."""
    return sum(steps * (bucket_of(size, sizes) - size) for size, steps in load.items())


def play_choose_sizes(attempt: Callable, load: dict[int, int], num_sizes: int) -> dict[str, object]:
    """The rows that the attempt's buckets pad. Raises BrokenContract for what are no buckets of the load."""
    sizes = sorted(set(map(int, answer_of(attempt, load=load, num_sizes=num_sizes))))
    if not sizes or sizes[-1] < max(load):
        raise BrokenContract(
            f"the buckets {sizes} have no room for a batch of {max(load)}. The largest batch needs a "
            "graph, too."
        )
    if len(sizes) > num_sizes:
        raise BrokenContract(f"{sizes} are {len(sizes)} buckets, at most {num_sizes} are allowed.")
    return {"rows that are padding": rows_padded(load, sizes)}


CHOOSE_SIZES = Exercise(
    solution=choose_sizes,
    draw=lambda rng: {
        "load": {size: rng.randint(1, 50) for size in rng.sample(range(1, 65), rng.randint(1, 7))},
        "num_sizes": rng.randint(1, 4),
    },
    contract="Among all choices of at most `num_sizes` buckets with room for the largest batch, find the "
    "one that pads the fewest rows, counting each once per step.",
    play=play_choose_sizes,
)
