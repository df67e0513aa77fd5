"""Lesson 06: its exercises, and copies that run late."""

import copy
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.learn.exercise import BrokenContract, Exercise, check_unchanged


class Device:
    """A device whose copies read their buffers in order: at once, or as late as possible, when waited for."""

    def __init__(self, is_late: bool) -> None:
        self._is_late = is_late
        self.asked: list[tuple[list[int], int]] = []
        self.arrived: list[list[int]] = []
        self.waited: list[int] = []  # the numbers of the copies that were still under way when waited for

    def copy(self, buffer: list[int], num_numbers: int) -> "Copy":
        """Ask for a copy of the first `num_numbers` of a buffer. The call returns at once."""
        self.asked.append((buffer, num_numbers))
        if not self._is_late:
            self.run(len(self.asked))
        return Copy(self, len(self.asked) - 1)

    def run(self, count: int) -> None:
        """Make the first `count` copies, as far as they are not made: each reads its buffer as it is now."""
        for buffer, num_numbers in self.asked[len(self.arrived) : count]:
            self.arrived.append(buffer[:num_numbers])


class Copy(NamedTuple):
    """An asynchronous copy, by its number."""

    device: Device
    number: int

    def wait(self) -> None:
        """Return when this copy has been made, and all copies before it."""
        if self.number >= len(self.device.arrived):
            self.device.waited.append(self.number)
            self.device.run(self.number + 1)


def send_all(
    messages: list[list[int]], buffers: list[list[int]], copy: Callable[[list[int], int], Copy]
) -> None:
    """Send all messages from two buffers in turn, as `PinnedStaging.send` does."""
    copied: list[Copy | None] = [None, None]
    for i, numbers in enumerate(messages):
        turn = i % 2
        if copied[turn] is not None:
            copied[turn].wait()
        buffers[turn][: len(numbers)] = numbers
        copied[turn] = copy(buffers[turn], len(numbers))


def play_send_all(attempt: Callable, messages: list[list[int]], is_late: bool) -> dict[str, Any]:
    """What arrives, and which copies were waited for. Raises BrokenContract for a copy of another list."""
    device = Device(is_late)
    longest = max(map(len, messages))
    pinned = [[-1] * longest, [-1] * longest]
    given, buffers = copy.deepcopy(messages), list(pinned)

    def copied(buffer: list[int], n: int) -> Copy:
        if not any(buffer is own for own in pinned) or len(buffer) != longest:
            raise BrokenContract(
                "it asked for a copy of a list that is not one of the two buffers as they were made: write "
                "the numbers into the two lists that are there. (A slice is a new list, too.)"
            )
        return device.copy(buffer, n)

    attempt(given, buffers, copied)
    device.run(len(device.asked))
    check_unchanged({"messages": given}, {"messages": messages})
    return {"what arrives": device.arrived, "the copies that were waited for": device.waited}


SEND_ALL = Exercise(
    solution=send_all,
    draw=lambda rng: {
        "messages": [
            [rng.randrange(100) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 12))
        ],
        "is_late": rng.random() < 0.7,
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
    """Block and place of each row's new token, as `AttendThenWrite.begin` finds them; None for padding."""
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
