"""A chunk's CUDA graphs: for which rows, from where they read, and what they leave."""

import gc
from itertools import pairwise

import pytest
import torch
from fake_cuda import FakeCuda, torch_with
from helpers import assert_no_block_is_lost, tokens_of
from resident_helpers import gpu_engine, workload
from triton_marks import needs_triton

from labkit import LADDER
from labkit.engine.step import graphed
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.graphed_chunk import GraphedChunkStep, most_rows, row_buckets

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 100, 256, 1000, 2048, 5000, 8192])
def test_row_buckets_rise_from_16_to_the_largest_chunk(max_tokens):
    buckets = row_buckets(max_tokens)
    assert buckets[0] == 16 and buckets[-1] == max(16, max_tokens)
    assert all(smaller < larger <= 1.5 * smaller for smaller, larger in pairwise(buckets))


@pytest.mark.parametrize(("capability", "most"), [((9, 0), 8192), ((8, 0), 2048), ((10, 0), 2048)])
def test_graphs_have_more_rows_on_hopper(monkeypatch, capability, most):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert most_rows(torch.device("cuda")) == most


class FakeChunkStep:
    """Notes the chunks that it is asked for; its logits are the token ids that it was sent."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.layout = ChunkLayout(max_prompts=2, max_blocks=3)
        self.attention = None
        self.runs = []

    def room(self, num_rows):
        return torch.empty(self.layout.size(num_rows), dtype=torch.int64)

    def __call__(self, numbers):
        self.runs.append((len(numbers), self.cuda.is_capturing, bool(numbers.any())))
        return numbers[None, -4:]  # as a graph's output: a place that each replay writes


@pytest.fixture
def fake(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(graphed, "torch", torch_with(cuda))
    yield FakeChunkStep(cuda)
    gc.enable()


def test_a_graph_of_each_bucket_is_captured_when_it_is_made_with_nothing_but_pads(fake):
    step = GraphedChunkStep(fake, 50, CPU)
    assert step.buckets == [16, 24, 32, 48, 50]
    captured = [size for size, is_capturing, _ in fake.runs if is_capturing]
    assert captured == [fake.layout.size(bucket) for bucket in (50, 48, 32, 24, 16)]
    assert not any(has_numbers for *_, has_numbers in fake.runs)
    assert step.attention is fake.attention and step.layout is fake.layout


def test_a_chunk_takes_the_next_larger_graph_whose_numbers_and_logits_are_its_own(fake):
    step = GraphedChunkStep(fake, 50, CPU)
    del fake.runs[:]
    assert [step.num_rows(n) for n in (1, 16, 17, 32, 33, 50)] == [16, 16, 24, 32, 48, 50]
    numbers = step.room(24).copy_(torch.arange(fake.layout.size(24)))
    logits = step(numbers)
    graph, (output, likeliest) = step.graphs[24]
    assert graph.replays == 1 and not fake.runs
    assert numbers.data_ptr() == step.numbers.data_ptr()
    assert logits is output and logits.tolist() == [numbers[-4:].tolist()]
    assert step.likeliest is likeliest


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("num_tokens", [3, 20, 256])
def test_on_a_gpu_chunks_give_the_tokens_of_rung_12(tiny, num_tokens, is_drawn):
    prompts, params = workload(tiny, 7, is_drawn)
    made = []
    for number, settings in (
        ("12", {}),
        ("13", {"prefill_max_tokens": num_tokens, "prefill_chunk_tokens": num_tokens}),
    ):
        engine = gpu_engine(
            tiny, LADDER[number].options, **{"prefill_max_batch_size": 4, "max_batch_size": 8} | settings
        )
        made.append(tokens_of(engine.generate(prompts, params)))
        assert_no_block_is_lost(engine)
    assert made[1] == made[0]
    step = engine.prefill.chunk_step
    assert isinstance(step.device_step, GraphedChunkStep) and step.max_tokens == num_tokens
