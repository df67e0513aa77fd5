"""Lesson 06: its exercises, and copies that run late."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.learn.exercise import BrokenContract, Exercise, check_unchanged

# --- a device whose copies run late, and ways to send messages to it through pinned buffers ------------


@dataclass(eq=False, repr=False)
class Copy:
    """An asynchronous copy of a `LateDevice`: of the first `num_numbers` of a buffer."""

    device: "LateDevice"
    buffer: list[int]
    num_numbers: int
    number: int

    def wait(self) -> None:
        """Return when this copy has been made, and all copies before it."""
        if self in self.device.under_way:
            self.device.waited.append(self.number)
        while self in self.device.under_way:
            self.device.run_oldest()


class LateDevice:
    """A device whose asynchronous copies read their buffers late, in the order in which they were asked for.

    late_by: how many copies may be under way; asking for one more runs the oldest. 0: each runs at once;
    None: as late as possible, when it is waited for.
    """

    def __init__(self, late_by: int | None = None) -> None:
        self._late_by = late_by
        self.under_way: list[Copy] = []
        self.arrived: list[list[int]] = []
        self.waited: list[int] = []  # the numbers of the copies that were still under way when waited for

    def copy(self, buffer: list[int], num_numbers: int) -> Copy:
        """Ask for a copy of the first `num_numbers` of a buffer. The call returns at once."""
        copy = Copy(self, buffer, num_numbers, len(self.arrived) + len(self.under_way))
        self.under_way.append(copy)
        while self._late_by is not None and len(self.under_way) > self._late_by:
            self.run_oldest()
        return copy

    def run_oldest(self) -> None:
        """Run the oldest copy that is under way: it reads its buffer as it is now."""
        copy = self.under_way.pop(0)
        self.arrived.append(copy.buffer[: copy.num_numbers])


Buffers = list[list[int]]
SendAll = Callable[[list[list[int]], Buffers, Callable[[list[int], int], Copy]], None]


def send_all(messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]) -> None:
    """Send all messages from two buffers in turn, as `PinnedStaging.send` does: before a buffer is written
    again, its copy is waited for."""
    copied: list[Copy | None] = [None, None]
    for i, numbers in enumerate(messages):
        turn = i % 2
        if copied[turn] is not None:
            copied[turn].wait()
        buffers[turn][: len(numbers)] = numbers
        copied[turn] = copy(buffers[turn], len(numbers))


# --- the exercises on buffers that take turns, and on the place of a request's next token --------------

DEVICES = {"late": None, "one behind": 1, "prompt": 0}  # by how many copies may be under way


def play_send_all(attempt: SendAll, messages: list[list[int]], device: str) -> dict[str, Any]:
    """Call the attempt with two buffers and one of DEVICES, and return what arrives and which copies were
    waited for. Raises BrokenContract if it copies from anything but the two buffers as they are."""
    late_device = LateDevice(DEVICES[device])
    longest = max(map(len, messages))
    pinned = [[-1] * longest, [-1] * longest]
    given, buffers = copy.deepcopy(messages), list(pinned)

    def copied(buffer: list[int], n: int) -> Copy:
        if not any(buffer is own for own in pinned) or len(buffer) != longest:
            raise BrokenContract(
                "it asked for a copy of a list that is not one of the two buffers as they were made. The "
                "device reads pinned memory, which keeps its size: write the numbers into the two lists that "
                "are there. (A slice is a new list, too.)"
            )
        return late_device.copy(buffer, n)

    attempt(given, buffers, copied)
    waited = list(late_device.waited)
    while late_device.under_way:
        late_device.run_oldest()
    check_unchanged({"messages": given}, {"messages": messages})
    return {"what arrives": late_device.arrived, "the copies that were waited for": waited}


SEND_ALL = Exercise(
    solution=send_all,
    draw=lambda rng: {
        "messages": [
            [rng.randrange(100) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 12))
        ],
        "device": rng.choice(("late", *DEVICES)),
    },
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
    solution=next_places,
    draw=draw_next_places,
    contract="Look up the row's slot, then that slot's length. The number of full blocks picks the entry "
    "of the slot's table, and the remainder is the place in that block. A length of -1 is padding:"
    " None.",
)
