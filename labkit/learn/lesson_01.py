"""Lesson 01: the exercises on signatures of rows, counting rows, what breaks them on purpose, and what tables
cost."""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from labkit.bench import host_engine
from labkit.engine import InferenceEngine, InferenceSession
from labkit.kvcache import CachedBlockTables, KVBlockManager, RebuiltBlockTables
from labkit.kvcache.block_tables import RowHolder
from labkit.ladder import LADDER
from labkit.learn.answers import one_line, plain
from labkit.learn.exercise import BrokenContract, Case, Exercise, answer_of
from labkit.learn.gates.gate import raised
from labkit.watch import steady_decode, steady_prompts

Signature = tuple[int, int]  # the number of blocks, and the last one's id
Move = tuple[str | int, ...]  # the name of an operation and its arguments
OPERATIONS = {  # by name: how many arguments it has
    "append": 1,
    "replace_last": 1,
    "replace": 2,
    "truncate": 1,
}
NUM_BLOCKS = 10  # in the pool on which the moves are played


def signature_of(block_ids: Sequence[int]) -> Signature:
    """The number of blocks and the last one's id (-1 without blocks), which a session compares to know
    whether its row of the block table is still right."""
    return len(block_ids), block_ids[-1] if block_ids else -1


# --- exercise 1 ----------------------------------------------------------------------------------------


def must_be_made_anew(signature: Signature | None, block_ids: list[int]) -> bool:
    """Whether a row must be made anew. signature: of the blocks when the row was made; None if it never
    was."""
    return signature_of(block_ids) != signature


def draw_row(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `must_be_made_anew`: a list of blocks, and the signature of what it may have been
    before: equal, longer, shorter, empty, with another block, or never asked for."""
    new_id, *block_ids = rng.sample(range(10), rng.randint(1, 6))
    *rest, last_id = block_ids or [new_id]
    before = rng.choice(
        (
            block_ids,
            block_ids[:-1],
            block_ids[-1:],
            block_ids[::-1],
            [*block_ids, new_id],
            [*rest, new_id],
            [new_id, *rest[1:], last_id],
            [new_id, *rest, last_id],
            [*rest[1:], last_id],
            [],
            None,
        )
    )
    return {"signature": None if before is None else signature_of(before), "block_ids": block_ids}


MUST_BE_MADE_ANEW = Exercise(
    name="must_be_made_anew",
    cases=(
        Case(
            {"signature": (2, 7), "block_ids": [3, 7]},
            False,
            "The token went into the last block, which had room: the same two blocks, so the row stands.",
        ),
        Case(
            {"signature": (2, 7), "block_ids": [3, 7, 9]},
            True,
            "The last block was full and another was added: the row lacks block 9.",
        ),
        Case(
            {"signature": (2, 7), "block_ids": [3, 9]},
            True,
            "Copy-on-write: as many blocks as before, but the last one is now a copy, block 9. The number "
            "of blocks alone does not show it.",
        ),
        Case(
            {"signature": (3, 5), "block_ids": [3, 5]},
            True,
            "The list was cut to one block and grew by block 5: the same last id, but fewer blocks. The "
            "number of blocks is half of the signature.",
        ),
        Case(
            {"signature": None, "block_ids": [3, 7]},
            True,
            "None: this row was never made, or was forgotten. Nothing in it can be used.",
        ),
        Case(
            {"signature": (0, -1), "block_ids": []},
            False,
            "A session without blocks has no last id; its signature is (0, -1), and its row of zeros stands.",
        ),
        Case(
            {"signature": (2, 7), "block_ids": []},
            True,
            "The list was emptied: its signature is now (0, -1), and was (2, 7).",
        ),
        Case(
            {"signature": (2, 7), "block_ids": [3, 1]},
            True,
            "Copy-on-write takes any free block, so that the copy's id can be less than the old one's.",
        ),
        Case(
            {"signature": (2, 7), "block_ids": [7, 3]},
            True,
            "Two blocks as before, and block 7 is one of them, but no longer the last: only the last counts.",
        ),
        Case(
            {"signature": (2, 0), "block_ids": [9, 0]},
            False,
            "The last block is block 0, a block like any other, and not the largest: the row stands.",
        ),
    ),
    solution=must_be_made_anew,
    draw=draw_row,
    drawn_hint="The row stands if the number of blocks and the last id are both as the signature has them; "
    "without a block they are 0 and -1.",
)


# --- exercise 2 ----------------------------------------------------------------------------------------


def make_moves(block_ids: list[int], moves: Any) -> None:
    """Make the moves on the list of blocks, in place. They and their list can be any sequences. Raises
    BrokenContract at the first that cannot be made."""
    given = plain(moves)
    if not isinstance(given, tuple) or any(isinstance(item, str) for item in given):
        raise BrokenContract("Return a list of operations, such as [('append', 9)], even of one.")
    for number, move in enumerate(given, start=1):
        try:
            _make(block_ids, move)
        except BrokenContract as broken:
            raise BrokenContract(f"Operation {number}: {broken}") from None


def _make(block_ids: list[int], move: Any) -> None:
    name, *numbers = move if isinstance(move, tuple) and move else (move,)
    known = OPERATIONS.get(name) if isinstance(name, str) else None
    if known is None:
        raise BrokenContract(f"{move!r} is none of the operations {', '.join(OPERATIONS)}.")
    if len(numbers) != known or not all(type(n) is int for n in numbers):
        raise BrokenContract(f"{name!r} takes {known} whole number{'s' * (known > 1)}, but this is {move!r}.")
    if name == "truncate":
        if not 0 <= numbers[0] <= len(block_ids):
            raise BrokenContract(f"{block_ids} cannot be cut to {numbers[0]} blocks.")
        del block_ids[numbers[0] :]
        return
    *place, new_id = numbers
    if not 0 <= new_id < NUM_BLOCKS:
        raise BrokenContract(f"there is no block {new_id}; the pool has blocks 0 to {NUM_BLOCKS - 1}.")
    if new_id in block_ids:
        raise BrokenContract(f"block {new_id} is in {block_ids} already; a sequence holds a block once.")
    if name == "append":
        block_ids.append(new_id)
        return
    index = place[0] if place else len(block_ids) - 1
    if not 0 <= index < len(block_ids):
        raise BrokenContract(f"{block_ids} has no block at place {index}.")
    block_ids[index] = new_id


def session_on(manager: KVBlockManager, block_ids: Sequence[int]) -> InferenceSession:
    """A session that names these blocks without holding them: the manager's reference counts stay as they
    are."""
    session = InferenceSession(manager)
    session.block_ids_per_layer[0].extend(block_ids)
    return session


def row_of(session: InferenceSession) -> list[int]:
    """The block ids that attention would read: the beginning of the session's row in the block table, as long
    as its list of blocks."""
    row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
    return row[: len(session.block_ids_per_layer[0])].tolist()


def play_moves(attempt: Callable, block_ids: list[int], free_ids: list[int]) -> dict[str, list[int]]:
    """Make the attempt's moves on a session's list, and return the row that attention reads after them.
    Raises BrokenContract if a move cannot be made, or if that row is right."""
    moves = answer_of(attempt, block_ids=block_ids, free_ids=free_ids)
    try:
        return {"the row that attention reads": stale_row(block_ids, moves)}
    except BrokenContract as broken:
        raise BrokenContract(f"gave {one_line(repr(moves))}. {broken}") from None


def stale_row(block_ids: list[int], moves: Any) -> list[int]:
    """The row after the moves, by the package's block table cache; it is asked for before them, too, as two
    decode steps would. Raises BrokenContract if the row is not stale."""
    manager = KVBlockManager(
        num_layers=1, num_heads=1, head_dim=1, block_size=4, max_blocks_per_layer=NUM_BLOCKS
    )
    session = session_on(manager, block_ids)
    row_of(session)
    now = session.block_ids_per_layer[0]
    make_moves(now, moves)
    row = row_of(session)
    before, after = signature_of(block_ids), signature_of(now)
    if before != after:
        raise BrokenContract(
            f"The signature changed from {before} to {after}, so the row was made anew and is right: "
            f"{row}. The number of blocks and the last id must both end as they began."
        )
    if row == now:
        raise BrokenContract(
            f"The signature is the same, {after}, but so is the list, {now}: the row is not stale. "
            "Some block before the last must be another one."
        )
    return row


def break_the_row(block_ids: list[int], free_ids: list[int]) -> list[Move]:
    """Moves that make a row stale: replace a block that is not the last, which neither the number of blocks
    nor the last id shows."""
    return [("replace", 0, free_ids[0])]


def break_the_row_by_shrinking(block_ids: list[int], free_ids: list[int]) -> list[Move]:
    """Moves that make a row stale: shrink by two blocks, and grow again to the same number of blocks and the
    same last id."""
    return [("truncate", len(block_ids) - 2), ("append", free_ids[0]), ("append", block_ids[-1])]


def draw_list(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `break_the_row`: a list of 2 to 6 blocks of the pool, and the free ones."""
    ids = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    length = rng.randint(2, 6)
    return {"block_ids": ids[:length], "free_ids": ids[length:]}


def list_to_break(*block_ids: int) -> Case:
    """A case of `break_the_row` on these blocks. The row must read as before the moves, that is, be stale; if
    it is not, `play_moves` says so, and the case needs no hint."""
    free_ids = [i for i in range(NUM_BLOCKS) if i not in block_ids]
    stale = {"the row that attention reads": list(block_ids)}
    return Case({"block_ids": list(block_ids), "free_ids": free_ids}, stale, "")


BREAK_THE_ROW = Exercise(
    name="break_the_row",
    cases=(list_to_break(3, 7, 5), list_to_break(2, 0, 1, 6), list_to_break(4, 8)),
    solution=break_the_row,
    draw=draw_list,
    play=play_moves,
)


# --- what the lesson counts ----------------------------------------------------------------------------


def rows_made(engine: InferenceEngine, num_steps: int = 128) -> str:
    """Decode 8 requests for `num_steps` steps; how many rows the engine's block tables made, of how many that
    they handed out. The block tables are a reader's, and count the rows that they make in `num_made`.
    """
    tables, asked = engine.decode_step.block_tables, 0
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))) as request_ids:
            before = tables.num_made
            for _ in range(num_steps):
                engine.step()
                asked += engine.kv_manager.num_layers * len(request_ids)
    except Exception as error:  # whatever the reader's code raises
        return f"rows made: not counted, because the engine {raised(error)}"
    return f"rows made: {tables.num_made - before} of {asked}"


# --- what the lesson breaks ----------------------------------------------------------------------------


class NumberOnlyBlockTables(CachedBlockTables):
    """A block table cache that is wrong on purpose: it makes a row anew only when the *number* of blocks has
    changed."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._rows: dict[tuple[RowHolder, int], list[int]] = {}

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        """Fill the tables [L, B, M] with the sessions' rows, made anew or kept."""
        block_tables_cpu.zero_()
        for layer_idx in range(self.kv_manager.num_layers):
            offset = self.kv_manager.layer_offset(layer_idx)
            for b, session in enumerate(sessions):
                block_ids = session.block_ids_per_layer[layer_idx]
                row = self._rows.get((session, layer_idx), [])
                if len(row) != len(block_ids):
                    row = [block_id - offset for block_id in block_ids]
                    self._rows[session, layer_idx] = row
                block_tables_cpu[layer_idx, b, : len(row)] = torch.tensor(row, dtype=torch.int32)


def cut_and_regrow(forget_rows: bool) -> tuple[list[int], list[int]]:
    """Exercise 2 with blocks that the manager hands out: a sequence shrinks by two blocks and grows by two
    again, while other sequences come and go. Returns its blocks and its row.

    forget_rows: shrink as the engine does, by `InferenceSession.roll_back`; else by `truncate` alone.
    """
    # A block holds one token, so tokens are blocks.
    manager = KVBlockManager(num_layers=1, num_heads=1, head_dim=1, block_size=1, max_blocks_per_layer=8)
    sequence, leaver, newcomer = (InferenceSession(manager) for _ in range(3))

    def grow(session: InferenceSession, num_tokens: int) -> None:
        zeros = torch.zeros(1, 1, num_tokens, 1)  # [L, H, T, D]
        session.append_prompt(zeros, zeros)

    grow(sequence, 3)
    grow(leaver, 1)
    row_of(sequence)
    sequence.num_tokens = 1
    if forget_rows:
        sequence.roll_back()
    else:
        manager.truncate(sequence.block_ids_per_layer[0], sequence.num_tokens)
    grow(newcomer, 1)  # takes what was the sequence's middle block
    leaver.release()  # gives the block that will be in the middle
    grow(sequence, 2)
    return sequence.block_ids_per_layer[0], row_of(sequence)


def rows_arrived(num_layers: int, num_buffers: int) -> int:
    """How many layers' rows arrive if every asynchronous copy runs as late as it may.

    Layer i fills buffer i % num_buffers with its rows, here its own number, and asks for a copy, which
    reads the buffer only when all layers have asked.
    """
    buffers = torch.full((num_buffers,), -1)
    device = torch.full((num_layers,), -1)
    asked = []
    for layer_idx in range(num_layers):
        buffers[layer_idx % num_buffers] = layer_idx
        asked.append((layer_idx, layer_idx % num_buffers))
    for layer_idx, buffer in asked:
        device[layer_idx] = buffers[buffer]
    return int((device == torch.arange(num_layers)).sum())


# --- what the lesson times -----------------------------------------------------------------------------


@torch.inference_mode()
def table_times(
    device: torch.device | str, batch_size: int = 64, repeats: int = 15
) -> tuple[float, float, float]:
    """Median microseconds of making the block tables of GPT-2's layers for a steady batch: from lists, as
    rung 00 does; by rung 01 with every row kept; and by rung 01 with every row made anew."""
    engine = host_engine(LADDER["01"].options, batch_size, device)
    cached, rebuilt = engine.decode_step.block_tables, RebuiltBlockTables(engine.kv_manager, batch_size)
    seconds: list[tuple[float, ...]] = []
    with steady_decode(engine, steady_prompts(batch_size, (8,))):
        sessions = list(engine.scheduler.running.values())
        for _ in range(repeats):
            started = [time.perf_counter()]
            for tables in (rebuilt, cached):
                tables.build(sessions)
                started.append(time.perf_counter())
            for session in sessions:
                session.roll_back()  # takes no token back, but forgets the rows
            started_anew = time.perf_counter()
            cached.build(sessions)
            anew = time.perf_counter() - started_anew
            seconds.append((started[1] - started[0], started[2] - started[1], anew))
    return tuple(1e6 * median(column) for column in zip(*seconds, strict=True))
