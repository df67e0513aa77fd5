"""A chunk: how it is sent, what is copied of it, and its draws."""

import pytest
import torch
from helpers import GREEDY, make_manager, small_model

from labkit.engine import InferenceSession
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.request import Request
from labkit.engine.scheduler import Joining
from labkit.engine.step.chunk import ChunkStep, FirstTokenSampler, PackedAttention, ResidentChunkStep
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.fused import padded_head
from labkit.engine.step.samplers import SortedSampler
from labkit.kernels import kv_append_packed_plain, packed_attention_plain
from labkit.kvcache import OneTableBlockManager

PROMPTS = [(1, 2, 3, 4, 5, 6), (7, 8), (9, 10, 11, 12, 13)]


class PaddedChunkStep(ChunkStep):
    """With pads behind the tokens, as a graph has them."""

    def num_rows(self, num_tokens):
        return num_tokens + 5


def resident(kind, max_tokens=16, max_prompts=4):
    manager = make_manager(OneTableBlockManager, num_heads=2, head_dim=8, max_blocks_per_layer=16)
    layout = ChunkLayout(max_prompts, manager.max_blocks_per_seq)
    attention = PackedAttention(manager, packed_attention_plain, kv_append_packed_plain)
    network = small_model().network
    step = kind(network, attention, layout, padded_head(network.lm_head.weight.detach()))
    sampler = FirstTokenSampler(SortedSampler(), layout, torch.device("cpu"))
    return manager, ResidentChunkStep(step, sampler, manager, max_tokens)


def joining_in(manager):
    joining = {}
    for i, prompt in enumerate(PROMPTS):
        session = InferenceSession(manager)
        session.reserve_prompt(len(prompt))
        joining[Request(i, prompt, GREEDY)] = Joining(session, prompt, None)
    return joining


def test_a_chunk_that_finishes_nobody_copies_no_token_and_counts_no_pad(monkeypatch):
    manager, step = resident(PaddedChunkStep)
    monkeypatch.setattr(step.pinned_tokens, "start_copy", None)
    with torch.inference_mode():
        flight = step.launch(PackedChunk(PROMPTS, [0, 0, 0], 3), joining_in(manager), [])
    assert flight.read() == [] and flight.num_tokens == 3


def test_a_chunk_is_sent_in_one_go_without_the_tables_of_prompts_that_are_not_there(monkeypatch):
    manager, step = resident(ChunkStep)
    sent, send = [], step.staging.send
    monkeypatch.setattr(
        step.staging, "send", lambda numbers, to: sent.append((len(numbers), len(to))) or send(numbers, to)
    )
    with torch.inference_mode():
        step.launch(PackedChunk(PROMPTS, [0, 0, 0], 16), joining_in(manager), [0, 1, 2])
    assert sent == [(step.layout.size_up_to(13, 3), step.layout.size(13))]


def test_the_logits_of_a_chunk_are_not_written_over_by_the_next_one():
    """A graph's lie in one place."""
    manager, step = resident(ChunkStep)
    joining, device_step, place = joining_in(manager), step.device_step, torch.empty(4, 256)
    step.device_step = lambda numbers: place.copy_(device_step(numbers))
    with torch.inference_mode():
        first = step.launch(PackedChunk(PROMPTS, [0, 0, 0], 8), joining, [0, 1])
        before = first.last_logits.clone()
        step.launch(PackedChunk(PROMPTS, [6, 2, 0], 8), joining, [2])
    assert first.last_logits.equal(before) and before[0].any()


# --- how it is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 16])
@pytest.mark.parametrize("max_prompts", [1, 2, 3, 8])
def test_parts_are_apart_and_begin_at_multiples_of_16_bytes(max_prompts, num_rows):
    layout = ChunkLayout(max_prompts, max_blocks=3)
    numbers = torch.zeros(layout.size(num_rows), dtype=torch.int64)
    assert layout.num_rows(numbers) == num_rows
    parts = layout.split(numbers)
    assert [len(part) for part in parts] == [
        max_prompts + 1,
        max_prompts,
        max_prompts,
        6 * (max_prompts + max_prompts % 2),
        num_rows,
        num_rows,
        3 * max_prompts,
    ]
    for num_prompts in range(max_prompts):  # the tables of others lie behind those of so many
        tables = parts.block_tables.storage_offset() + 3 * num_prompts
        assert layout.size_up_to(num_rows, num_prompts) == tables
    for part in parts:
        assert part.storage_offset() % 2 == 0 or not len(part)
        part += 1
    assert numbers.max() <= 1 and numbers.sum() == sum(map(len, parts))


def test_a_prompt_without_a_row_in_front_has_a_row_to_read_all_the_same():
    manager, step = resident(ChunkStep)
    joining = dict(list(joining_in(manager).items())[:2])
    numbers = step.layout.pack(PackedChunk(PROMPTS[:2], [6, 0], 16), joining, num_rows=2)
    parts = step.layout.split(numbers)
    assert parts.starts.tolist() == [0, 0, 2, 2, 2] and parts.last_rows.tolist() == [0, 1, 1, 1]
