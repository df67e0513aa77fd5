"""Lesson 06: a device whose copies run late, and ways to send messages to it through pinned buffers."""

from collections.abc import Callable, Sequence

import pandas as pd


class Copy:
    """An asynchronous copy of a `LateDevice`."""

    def __init__(self, device: "LateDevice", buffer: list[int], num_numbers: int, number: int) -> None:
        self._device, self._buffer, self._num_numbers, self.number = device, buffer, num_numbers, number

    def wait(self) -> None:
        """Return when this copy has been made, and all copies before it."""
        self._device.run_until(self)

    def read_buffer(self) -> list[int]:
        """The numbers that lie in the buffer now."""
        return self._buffer[: self._num_numbers]


class LateDevice:
    """A device whose asynchronous copies read their buffers late, in the order in which they were asked for.

    late_by: how many copies may be under way; asking for one more runs the oldest. 0: each runs at once;
    None: as late as possible, when it is waited for.
    """

    def __init__(self, late_by: int | None = None) -> None:
        self._late_by = late_by
        self._under_way: list[Copy] = []
        self.arrived: list[list[int]] = []
        self.waited: list[int] = []  # the numbers of the copies that were still under way when waited for

    def copy(self, buffer: list[int], num_numbers: int) -> Copy:
        """Ask for a copy of the first `num_numbers` of a buffer. The call returns at once."""
        copy = Copy(self, buffer, num_numbers, len(self.arrived) + len(self._under_way))
        self._under_way.append(copy)
        while self._late_by is not None and len(self._under_way) > self._late_by:
            self._run_oldest()
        return copy

    def run_until(self, copy: Copy) -> None:
        """Run copies, oldest first, until this one has been made."""
        if copy in self._under_way:
            self.waited.append(copy.number)
        while copy in self._under_way:
            self._run_oldest()

    def finish(self) -> None:
        """Run all copies that are under way."""
        while self._under_way:
            self._run_oldest()

    def _run_oldest(self) -> None:
        self.arrived.append(self._under_way.pop(0).read_buffer())


Buffers = list[list[int]]
SendAll = Callable[[list[list[int]], Buffers, Callable[[list[int], int], Copy]], None]


def one_buffer(messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]) -> None:
    """Send all messages from one buffer without waiting for its copies, as the public code does that the
    write-ups describe."""
    for numbers in messages:
        buffers[0][: len(numbers)] = numbers
        copy(buffers[0], len(numbers))


def two_without_waiting(
    messages: list[list[int]], buffers: Buffers, copy: Callable[[list[int], int], Copy]
) -> None:
    """Send all messages from two buffers in turn, without waiting for their copies."""
    for i, numbers in enumerate(messages):
        buffer = buffers[i % 2]
        buffer[: len(numbers)] = numbers
        copy(buffer, len(numbers))


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


# Ways to send messages through pinned buffers, by name.
STAGINGS: dict[str, SendAll] = {
    "one buffer, no wait": one_buffer,
    "two buffers, no wait": two_without_waiting,
    "two buffers, wait for the buffer's last copy": send_all,
}


def messages_spoilt(num_messages: int, late_by: Sequence[int | None]) -> pd.DataFrame:
    """How many of `num_messages` arrive wrong, a row per way of staging, a column per lateness of the
    copies."""
    messages = [[i] for i in range(num_messages)]
    table = {}
    for lateness in late_by:
        column = "as late as possible" if lateness is None else f"{lateness} late"
        table[column] = {}
        for name, staging in STAGINGS.items():
            device = LateDevice(lateness)
            staging(messages, [[-1], [-1]], device.copy)
            device.finish()
            wrong = sum(got != sent for got, sent in zip(device.arrived, messages, strict=True))
            table[column][name] = wrong
    return pd.DataFrame(table)
