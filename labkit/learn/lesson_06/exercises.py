"""Lesson 06: the exercises on buffers that take turns, and on the place of a request's next token."""

import copy
import random
from typing import Any

from labkit.learn.exercise import BrokenContract, Exercise, check_unchanged
from labkit.learn.lesson_06.copies import Copy, LateDevice, SendAll, send_all

DEVICES = {"late": None, "one behind": 1, "prompt": 0}  # by how many copies may be under way


def play_send_all(attempt: SendAll, messages: list[list[int]], device: str) -> dict[str, Any]:
    """Call the attempt with two buffers and one of DEVICES, and return what arrives and which copies were
    waited for. Raises BrokenContract if it copies from anything but the two buffers as they are."""
    late_device = LateDevice(DEVICES[device])
    longest = max(map(len, messages))
    pinned = [[-1] * longest, [-1] * longest]
    given, buffers = copy.deepcopy(messages), list(pinned)

    def copied(buffer: list[int], n: int) -> Copy:
        if not any(buffer is own for own in pinned):
            if any(buffer is placed for placed in buffers):
                raise BrokenContract(
                    "it put a new list in the place of a buffer. That is new memory, which is not pinned: "
                    "write the numbers into the list that is there."
                )
            raise BrokenContract(
                "it asked for a copy of a list that is not one of the two buffers (a slice is a new list, "
                "too). The device reads pinned memory: use the buffers."
            )
        if len(buffer) != longest:
            raise BrokenContract(
                f"it made a buffer of {longest} numbers one of {len(buffer)}. Memory that is pinned has its "
                "size: overwrite as many numbers as the message has, and leave the rest."
            )
        return late_device.copy(buffer, n)

    attempt(given, buffers, copied)
    waited = list(late_device.waited)
    late_device.finish()
    check_unchanged({"messages": given}, {"messages": messages})
    return {"what arrives": late_device.arrived, "the copies that were waited for": waited}


def draw_send_all(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `send_all`: up to 12 messages of up to 4 numbers, and a device."""
    messages = [[rng.randrange(100) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 12))]
    return {"messages": messages, "device": rng.choice(("late", *DEVICES))}


SEND_ALL = Exercise(
    name="send_all",
    solution=send_all,
    draw=draw_send_all,
    contract="Fill a buffer, then ask for a copy of as many values as the message has. The buffers take "
    "turns, and before you write to one, wait for its own last copy; leave the last two copies "
    "under way.",
    play=play_send_all,
)


Place = tuple[int, int]  # a block, and the place in it


def next_places(
    block_tables: list[list[int]], context_lens: list[int], slot_mapping: list[int], block_size: int
) -> list[Place | None]:
    """Where each row of a batch writes its new token, as `AttendThenWrite.begin` finds it: the block and the
    place in it; None for a row that pads the batch, whose length is -1."""
    places: list[Place | None] = []
    for slot in slot_mapping:
        length = context_lens[slot]
        if length < 0:
            places.append(None)
        else:
            places.append((block_tables[slot][length // block_size], length % block_size))
    return places


def draw_next_places(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `next_places`: up to 5 slots and the one for padding, and a batch of some of them."""
    num_slots, block_size, num_blocks = rng.randint(1, 5), rng.choice((1, 2, 3, 4, 8)), rng.randint(1, 4)
    lens = [rng.randrange(num_blocks * block_size) for _ in range(num_slots)]
    ids = rng.sample(range(40), num_slots * num_blocks)
    tables = [ids[slot * num_blocks : (slot + 1) * num_blocks] for slot in range(num_slots)]
    mapping = rng.sample(range(num_slots), rng.randint(1, num_slots))
    mapping += [num_slots] * rng.randrange(3)
    return {
        "block_tables": [*tables, [0] * num_blocks],
        "context_lens": [*lens, -1],
        "slot_mapping": mapping,
        "block_size": block_size,
    }


NEXT_PLACES = Exercise(
    name="next_places",
    solution=next_places,
    draw=draw_next_places,
    contract="Look up the row's slot, then that slot's length. The number of full blocks picks the entry "
    "of the slot's table, and the remainder is the slot in that block. A length of -1 is padding:"
    " None.",
)
