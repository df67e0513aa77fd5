"""A chunk's own stream: what runs in it at the same time, and what may not."""

import random
from contextlib import contextmanager

import pytest
import torch
from devices import CUDA, busy_gpu
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.engine.step.side_stream import NoSide, SideStream
from labkit.watch import noting, replaced


class UnjoinedBlocks(NoSide):
    """Knows the blocks to which chunks may still write, and that nothing has waited for."""

    def __init__(self):
        self.blocks = set()

    def join(self):
        self.blocks.clear()


@contextmanager
def clashes_noted(engine):
    """Inside the block, the steps of the list write to blocks of a chunk that runs, and is not waited for."""
    clashes, side, join = [], engine.prefill.chunk_step.side, engine.scheduler.join

    def on_chunk(chunk, joining, finished):
        side.blocks.update(*(each.session.block_ids_per_layer[0] for each in joining.values()))

    def on_read(requests):  # of first tokens: the chunks are over
        for request in requests:
            side.blocks.difference_update(engine.scheduler.joining[request].session.block_ids_per_layer[0])
        join(requests)

    def on_step(requests, sessions, longest):
        if not side.blocks.isdisjoint(session.block_ids_per_layer[0][-1] for session in sessions):
            clashes.append(engine.stats().counters.steps)

    engine.scheduler.join = on_read
    with (
        replaced(engine.prefill.chunk_step, "launch", noting(on_chunk)),
        replaced(engine.decode_step, "start", noting(on_step)),
    ):
        yield clashes


def full_engine(max_blocks_per_layer, **settings):
    engine = make_engine(options=LADDER["14"].options, max_blocks_per_layer=max_blocks_per_layer, **settings)
    engine.prefill.chunk_step.side = UnjoinedBlocks()
    return engine


def serve_at_random(engine, seed):
    """Requests of all lengths, of which some are cancelled while they join."""
    rng = random.Random(seed)
    for _ in range(120):
        if rng.random() < 0.4 and engine.stats().waiting < 3:
            prompt = [rng.randrange(250) for _ in range(rng.randrange(1, 30))]
            engine.add_request(prompt, SamplingParams(rng.randrange(1, 20), stop_on_eos=False))
        joining = [request.request_id for request in engine.scheduler.joining]
        if joining and rng.random() < 0.3:
            engine.cancel(joining[-1])
        engine.step()
        engine.check_integrity()


@pytest.mark.parametrize("decode_first", [False, True])
def test_no_step_writes_to_a_block_of_a_chunk_that_it_did_not_wait_for(decode_first):
    found, found_unjoined = [], []
    for seed in range(3):
        settings = {"prefill_chunk_tokens": 6, "decode_first": decode_first}
        engine, unjoined = full_engine(14, **settings), full_engine(14, **settings)
        unjoined.prefill.chunk_step.side.join = lambda: None
        for each, clashes_found in ((engine, found), (unjoined, found_unjoined)):
            with clashes_noted(each) as clashes:
                serve_at_random(each, seed)
            clashes_found += clashes
    assert found == [] and found_unjoined


@pytest.mark.cuda
def test_on_a_gpu_both_streams_are_busy_until_the_join():
    device = torch.device("cuda", torch.cuda.current_device())
    side, main = SideStream(device), torch.cuda.current_stream()
    numbers = torch.zeros(8, device=CUDA)
    numbers.add_(0)  # that kernel is loaded now
    torch.cuda.synchronize()
    with side:
        assert torch.cuda.current_stream() != main
        busy_gpu()
        numbers += 1
        inside = torch.cuda.Event()
        inside.record()
    assert torch.cuda.current_stream() == main
    outside = torch.cuda.Event()
    outside.record()
    outside.synchronize()
    assert not inside.query()  # it runs on while that is over
    side.join()
    assert (numbers * 2).tolist() == [2.0] * 8 and inside.query()


@pytest.mark.cuda
def test_on_a_gpu_what_is_inside_waits_for_what_was_launched_before():
    side = SideStream(torch.device("cuda", torch.cuda.current_device()))
    numbers = torch.zeros(8, device=CUDA)
    with side:
        numbers * 2
    torch.cuda.synchronize()
    busy_gpu()
    numbers += 1
    with side:
        doubled = numbers * 2
    side.join()
    assert doubled.tolist() == [2.0] * 8


@pytest.mark.cuda
def test_on_a_gpu_it_is_no_stream_in_which_another_engine_may_capture():
    device = torch.device("cuda", torch.cuda.current_device())
    side = SideStream(device)
    others = {torch.cuda.Stream(device).cuda_stream for _ in range(100)}
    with side:
        assert len(others) < 100 and torch.cuda.current_stream().cuda_stream not in others


@pytest.mark.cuda
def test_on_a_gpu_an_error_inside_goes_on_outside():
    side, main = SideStream(torch.device("cuda", torch.cuda.current_device())), torch.cuda.current_stream()
    with pytest.raises(ZeroDivisionError), side:
        raise ZeroDivisionError
    assert torch.cuda.current_stream() == main
