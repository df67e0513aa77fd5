"""Where a chunk's numbers lie: apart, at multiples of 16 bytes, and with a row to read for each prompt."""

import pytest
import torch
from helpers import GREEDY, SEEDED, make_manager

from labkit.engine import InferenceSession
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.request import Request
from labkit.engine.scheduler import Joining
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.kvcache import OneTableBlockManager

LAYOUT = ChunkLayout(max_prompts=3, max_blocks=4)
PROMPTS = [(1, 2, 3, 4, 5, 6), (7, 8)]


def joining_requests():
    manager = make_manager(OneTableBlockManager, max_blocks_per_seq=4)
    joining = {}
    for i, (prompt, params) in enumerate(zip(PROMPTS, (GREEDY, SEEDED), strict=True)):
        session = InferenceSession(manager)
        session.reserve_prompt(len(prompt))
        joining[Request(i, prompt, params)] = Joining(session, prompt, None)
    return joining


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
    joining = joining_requests()
    numbers = LAYOUT.pack(PackedChunk(PROMPTS, [6, 0], 16), joining, num_rows=2)
    parts = LAYOUT.split(numbers)
    assert parts.starts.tolist() == [0, 0, 2, 2] and parts.last_rows.tolist() == [0, 1, 1]
