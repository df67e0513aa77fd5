"""Numbers on their way to the GPU and back: no buffer is written over."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from devices import CPU, CUDA, busy_gpu
from resident_helpers import gpu_engine
from triton_marks import needs_triton

from labkit import LADDER, SamplingParams
from labkit.bench.cost_cards import count_on_device
from labkit.engine.step import staging as module
from labkit.engine.step.slots import SlotMemory
from labkit.engine.step.staging import NUM_BUFFERS, PinnedStaging, PinnedTokens, by_copy_engine
from labkit.kernels.host_numbers import copy_numbers_triton, scatter_words_triton

# --- there and back --------------------------------------------------------------------------------

EDGES = [0, 1, -1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]


def test_what_arrived_stays_and_what_was_sent_is_the_callers_again():
    staging = PinnedStaging(3, CPU)
    numbers = torch.tensor([1, 2, 3])
    first = staging.send(numbers)
    numbers.fill_(9)
    sent = [staging.send(torch.full((3,), i)) for i in range(5)]
    assert first.tolist() == [1, 2, 3]
    assert [s.tolist() for s in sent] == [[i] * 3 for i in range(5)]
    assert numbers.tolist() == [9, 9, 9]


def test_numbers_are_read_as_they_were_when_they_set_out():
    pinned_tokens = PinnedTokens(4, CPU)
    token_ids = torch.tensor([5, -1, 2**40])
    first = pinned_tokens.start_copy(token_ids)
    token_ids.fill_(0)
    second = pinned_tokens.start_copy(torch.tensor([7, 8, 9, 10]))  # before the first is read
    assert first.read() == [5, -1, 2**40]
    assert second.read() == [7, 8, 9, 10]
    assert second.read() == [7, 8, 9, 10]
    assert pinned_tokens.start_copy(torch.tensor([1])).read() == [1]
    assert all(type(number) is int for number in second.read())


class FakeEvent:
    """A point in a stream that is reached when somebody waits for it; what then happens is `arrive`'s."""

    def __init__(self, arrive: Callable[["FakeEvent"], None], made: list["FakeEvent"]) -> None:
        self.arrive, self.number = arrive, len(made)
        made.append(self)

    def synchronize(self) -> None:
        self.arrive(self)


def test_a_buffer_is_not_written_again_before_its_copy_is_over(monkeypatch):
    """Trap 5, as a GPU would see it that copies only when it is waited for."""
    staging, made, waited = PinnedStaging(2, CPU), [], []

    def land(event: FakeEvent) -> None:
        """What the copy finds in the buffers by now: its own numbers, and those of the sends after it."""
        waited.append((event.number, sorted(buffer.tolist() for buffer in staging.buffers)))

    monkeypatch.setattr(module, "event_behind", lambda *_: FakeEvent(land, made))
    for i in range(NUM_BUFFERS + 3):
        staging.send(torch.full((2,), i))
    assert waited == [(i, [[i + k] * 2 for k in range(NUM_BUFFERS)]) for i in range(3)]


def test_copies_take_turns_and_none_goes_over_one_that_is_not_read():
    pinned_tokens = PinnedTokens(1, CPU)
    unread = pinned_tokens.start_copy(torch.tensor([5]))
    for number in range(6):
        assert pinned_tokens.start_copy(torch.tensor([number])).read() == [number]
    lost = pinned_tokens.start_copy(torch.tensor([6]))
    assert len(pinned_tokens.buffers) == 2
    assert pinned_tokens.start_copy(torch.tensor([7])).read() == [7]
    assert len(pinned_tokens.buffers) == 3
    assert unread.read() == [5] and lost.read() == [6]
    del unread
    more = [pinned_tokens.start_copy(torch.tensor([number])) for number in (8, 9, 10)]
    assert len(pinned_tokens.buffers) == 3
    assert [copy.read() for copy in more] == [[8], [9], [10]]


def test_numbers_are_read_when_their_copy_is_over(monkeypatch):
    pinned_tokens, made = PinnedTokens(3, CPU), []
    landing = {0: [5, 6, 7], 1: [8, 9]}

    def land(event: FakeEvent) -> None:
        copies[event.number]._buffer.copy_(torch.tensor(landing[event.number]))

    monkeypatch.setattr(module, "event_behind", lambda *_: FakeEvent(land, made))
    copies = [pinned_tokens.start_copy(torch.full((len(numbers),), -7)) for numbers in landing.values()]
    assert [copy.read() for copy in copies] == list(landing.values())


# --- on a GPU --------------------------------------------------------------------------------------

Send = Callable[[torch.Tensor], torch.Tensor]


def by_copy(size: int) -> Send:
    """Sends so many int64 numbers at most to a GPU, as chunks are sent."""
    return PinnedStaging(size, CUDA).send


def by_kernel(size: int) -> Send:
    """The same, as slots are sent from rung 11 on."""
    memory = SlotMemory({"numbers": ((size,), torch.int64)}, 2 * size, CUDA)
    memory.staging.copy = scatter_words_triton

    def send(numbers: torch.Tensor) -> torch.Tensor:
        memory.put("numbers", np.s_[: len(numbers)], numbers.numpy())
        memory.write()
        return memory["numbers"][: len(numbers)].clone()

    return send


both_ways = pytest.mark.parametrize("sender", [by_copy, by_kernel])
by_both = pytest.mark.parametrize("copy", [by_copy_engine, copy_numbers_triton], ids=["copy", "kernel"])


@pytest.mark.cuda
@both_ways
def test_on_a_gpu_what_is_sent_arrives(sender):
    send = sender(8)
    for numbers in (EDGES, [7], [], EDGES[::-1], [1, 2, 3]):
        sent = send(torch.tensor(numbers, dtype=torch.int64))
        assert (sent.dtype, sent.device.type, sent.tolist()) == (torch.int64, "cuda", numbers)


@pytest.mark.cuda
@both_ways
def test_on_a_gpu_what_is_sent_arrives_though_nobody_waits_between_two_sends(sender):
    """Trap 5: a buffer may not be written again while its copy is on its way."""
    send = sender(100_000)
    busy_gpu()
    sent = [send(torch.full((100_000,), i)) for i in range(12)]
    for i, numbers in enumerate(sent):
        assert (numbers == i).all(), i


@pytest.mark.cuda
@both_ways
def test_on_a_gpu_two_copies_are_under_way_without_the_host_waiting(sender):
    numbers = [torch.full((1000,), i) for i in range(2)]
    earlier = sender(1000)  # a kernel is compiled by then
    for n in [earlier(n) for n in numbers]:
        assert n.is_cuda  # its memory is there to be used again, once it is let go of
    del n
    send = sender(1000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        busy_gpu()
        sent = [send(n) for n in numbers]
        is_busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert is_busy
    assert [n.unique().tolist() for n in sent] == [[0], [1]]


@pytest.mark.cuda
@by_both
def test_on_a_gpu_numbers_are_read_as_they_were_when_they_set_out(copy):
    pinned_tokens = PinnedTokens(100_000, CUDA)
    pinned_tokens.copy = copy
    token_ids = torch.empty(100_000, dtype=torch.int64, device=CUDA).fill_(0)  # that kernel is loaded now
    pinned_tokens.start_copy(token_ids).read()
    torch.cuda.synchronize()
    busy_gpu()
    token_ids.fill_(1)
    first = pinned_tokens.start_copy(token_ids)
    token_ids.fill_(2)
    second = pinned_tokens.start_copy(token_ids[:10])
    token_ids.fill_(3)
    assert not torch.cuda.current_stream().query()
    assert set(first.read()) == {1}
    assert second.read() == [2] * 10


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(("rung", "has_copies"), [("10", True), ("14", False)])
def test_on_a_gpu_no_copy_stands_between_steps_where_latency_is_hidden(tiny, rung, has_copies):
    engine = gpu_engine(tiny, LADDER[rung].options, block_size=2, max_batch_size=4)
    params = SamplingParams(40, stop_on_eos=False)
    engine.generate([(1, 2, 3)], params)
    engine.add_request((5, 6, 7), params)
    for _ in range(6):
        engine.step()
    counts = [count_on_device(engine) for _ in range(2)]  # one of which takes a block, and sends
    assert all((count.d2h_copies > 0) == has_copies for count in counts)
    assert (sum(count.h2d_copies for count in counts) > 0) == has_copies
