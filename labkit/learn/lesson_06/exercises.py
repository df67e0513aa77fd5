"""Lesson 06: the exercises on buffers that take turns, and on the place of a request's next token."""

import copy
import random
from typing import Any

from labkit.learn.exercise import BrokenContract, Case, Exercise, called, check_unchanged
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

    called(attempt, messages=given, buffers=buffers, copy=copied)
    waited = list(late_device.waited)
    late_device.finish()
    check_unchanged({"messages": given}, {"messages": messages})
    return {"what arrives": late_device.arrived, "the copies that were waited for": waited}


def draw_send_all(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `send_all`: up to 12 messages of up to 4 numbers, and a device."""
    messages = [[rng.randrange(100) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 12))]
    return {"messages": messages, "device": rng.choice(("late", *DEVICES))}


FIVE = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]

SEND_ALL = Exercise(
    name="send_all",
    cases=(
        Case(
            {"messages": [[1, 2, 3]], "device": "late"},
            {"what arrives": [[1, 2, 3]]},
            "Put the numbers into a buffer, then ask for a copy of as many as there are.",
        ),
        Case(
            {"messages": [[1, 2, 3]], "device": "prompt"},
            {"what arrives": [[1, 2, 3]]},
            "This device copies as soon as it is asked: the numbers must be in the buffer before that.",
        ),
        Case(
            {"messages": FIVE[:2], "device": "late"},
            {"what arrives": FIVE[:2]},
            "Nothing has been read yet when `copy` returns. The second message went into the buffer of the "
            "first, whose copy was under way: let the buffers take turns.",
        ),
        Case(
            {"messages": FIVE[:2], "device": "late"},
            {"the copies that were waited for": []},
            "Neither buffer has a copy under way when it is first written, so there is nothing to wait for, "
            "and nobody has to wait at the end.",
        ),
        Case(
            {"messages": FIVE[:3], "device": "late"},
            {"what arrives": FIVE[:3]},
            "The third message meets the first buffer again. Its last copy must be over before you write to "
            "it: keep what `copy` returns, and `wait` for it.",
        ),
        Case(
            {"messages": FIVE, "device": "late"},
            {"the copies that were waited for": [0, 1, 2]},
            "Two buffers let one copy go on while you fill the other. Wait for the last copy of the buffer "
            "that you write to, not for the newest copy, and leave the last two under way.",
        ),
        Case(
            {"messages": [[1, 2, 3], [4], [5], [6, 7]], "device": "late"},
            {"what arrives": [[1, 2, 3], [4], [5], [6, 7]]},
            "A buffer is as long as the longest message. Copy as many numbers as this message has, not what "
            "an earlier one left behind them.",
        ),
    ),
    solution=send_all,
    draw=draw_send_all,
    drawn_hint="The buffers take turns, and each waits for its own last copy before it is written again.",
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


def _places_of(mapping: list[int], block_size: int = 4) -> dict[str, Any]:
    """Slots 0 to 2, of 6, 3 and 4 tokens, and slot 3 for padding."""
    tables = [[7, 9, 0], [5, 0, 0], [1, 8, 0], [0, 0, 0]]
    return {
        "block_tables": tables,
        "context_lens": [6, 3, 4, -1],
        "slot_mapping": mapping,
        "block_size": block_size,
    }


NEXT_PLACES = Exercise(
    name="next_places",
    cases=(
        Case(
            _places_of([0]),
            [(9, 2)],
            "Slot 0 has 6 tokens: 4 fill block 7, 2 are in block 9. The next one goes into place 2 there.",
        ),
        Case(
            _places_of([0, 1]),
            [(9, 2), (5, 3)],
            "Slot 1 has 3 tokens, so the last place of its block is still empty.",
        ),
        Case(
            _places_of([0, 1, 2]),
            [(9, 2), (5, 3), (8, 0)],
            "Slot 2 has 4 tokens, and its first block is full. Room was made before: its next block, 8, is "
            "in the table already.",
        ),
        Case(
            _places_of([2, 0]),
            [(8, 0), (9, 2)],
            "Row b of the batch is the request in slot slot_mapping[b]: both its table and its length are "
            "there.",
        ),
        Case(
            _places_of([1, 3, 3]),
            [(5, 3), None, None],
            "Slot 3 is for padding, its length is -1, and nothing is stored for it.",
        ),
        Case(
            _places_of([0], block_size=3),
            [(0, 0)],
            "Here a block has 3 places, so that 6 tokens fill two blocks.",
        ),
        Case(
            _places_of([0]) | {"context_lens": [0, 3, 4, -1]},
            [(7, 0)],
            "Slot 0 has no token yet, and its first one goes into its first block. Only -1 is for padding.",
        ),
    ),
    solution=next_places,
    draw=draw_next_places,
    drawn_hint="Look up the slot of the row, then the length of the slot. How many whole blocks the tokens "
    "fill says which entry of the slot's table is next, and what is left over is the place in that block.",
)
