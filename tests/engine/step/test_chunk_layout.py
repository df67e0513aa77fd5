"""Where a chunk's numbers lie: what is packed on the host is what the device takes apart."""

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


def test_what_is_packed_is_what_is_taken_apart():
    joining = joining_requests()
    list(joining)[1].output_token_ids += [9, 9]  # it was preempted
    chunk = PackedChunk(PROMPTS, [1, 0], 16)
    numbers = LAYOUT.pack(chunk, joining, num_rows=10)
    assert numbers.dtype == torch.int64 and len(numbers) == LAYOUT.size(10) == 4 + 2 * 4 + 6 * 4 + 12 + 20
    parts = LAYOUT.split(numbers)
    assert parts.token_ids.tolist() == [2, 3, 4, 5, 6, 7, 8, 0, 0, 0]
    assert parts.positions.tolist() == [1, 2, 3, 4, 5, 0, 1, 0, 0, 0]
    assert parts.last_rows.tolist()[:2] == [4, 6]
    state = parts.sampling_state
    assert state.top_ks.tolist() == [0, 40, 0]
    assert state.seeds.tolist()[1:] == [7, 0] and state.draws.tolist() == [0, 2, 0]
    assert state.temperatures.tolist() == [0, 0.8, 0]
    assert state.top_ps.tolist()[:2] == [1, 0.95] and state.min_ps.tolist() == [0, 0.5, 0]
    rows = LAYOUT.rows_of(parts)
    assert rows.starts.tolist() == [0, 5, 7, 7] and rows.context_lens.tolist() == [1, 0, 0]
    assert rows.block_tables.tolist() == [[0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert {tensor.dtype for tensor in rows} == {torch.int32}


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
