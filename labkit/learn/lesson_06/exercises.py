"""Lesson 06: its exercise, and copies that run late."""

import copy
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
