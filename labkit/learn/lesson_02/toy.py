"""Lesson 02: a cache whose keys can be read, an append that copies too late, and the work of a step."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from labkit.bench.cost_cards import count_calls
from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.parts import Part
from labkit.kvcache import AppendBatched, KVBlockManager
from labkit.learn.gates.gate import raised
from labkit.learn.lesson_05.work import tiny_manager
from labkit.show import PoolFrame
from labkit.watch import LaunchRecorder, replaced, steady_decode, steady_prompts


def readable_session(manager: KVBlockManager, prompt: Sequence[int]) -> InferenceSession:
    """A session with this prompt in a `tiny_manager`: the key and the value of each token are its number."""
    session = InferenceSession(manager)
    numbers = torch.tensor(prompt, dtype=torch.float32).view(1, 1, -1, 1)  # [L, H, T, D]
    session.append_prompt(numbers, numbers)
    return session


def append_step(part: Part, sessions: Sequence[InferenceSession], tokens: Sequence[int]) -> None:
    """Append a token behind each session of a readable cache by a kv_append part, as a decode step does."""
    new = torch.tensor(tokens, dtype=torch.float32).view(-1, 1, 1)  # [B, H, D]
    part(sessions[0].kv_manager).append(sessions, [new], [new])
    for session in sessions:
        session.num_tokens += 1


def moments_of(part: Part) -> list[PoolFrame]:
    """A and B, two sessions that share a block with tokens 1 and 2, append tokens 10 and 20 by a part: the
    pool before, on both sides of each write, and at the end."""
    manager = tiny_manager(KVBlockManager, max_blocks_per_layer=3)
    first = readable_session(manager, [1, 2])
    sessions = [first, first.fork()]
    frames: list[PoolFrame] = []

    def frame(title: str) -> None:
        slots = manager.k_cache[0, :2, 0, :, 0].int().tolist()  # of [L, N, H, block_size, D]
        frames.append(frame_of_sessions(title, slots, dict(zip("AB", sessions, strict=True))))

    def framing(inner: Callable) -> Callable:
        def framed(*arguments: object) -> object:
            frame("blocks are ready")
            path = inner(*arguments)
            frame("after the write")
            return path

        return framed

    frame("before")
    with replaced(manager.kv_write, "write", framing):
        append_step(part, sessions, [10, 20])
    frame("at the end")
    return frames


def frame_of_sessions(
    title: str, slots: Sequence[Sequence[int]], sessions: Mapping[str, InferenceSession]
) -> PoolFrame:
    """The first blocks of layer 0's pool, by what is in their slots, and the names of those who hold each."""
    holders = tuple(
        "".join(name for name, session in sessions.items() if block in session.block_ids_per_layer[0])
        for block in range(len(slots))
    )
    return PoolFrame(title, tuple(map(tuple, slots)), holders)


class CopiesAfterTheWrite(AppendBatched):
    """An append that is wrong on purpose: the record of a copy-on-write is made at once, but its keys and
    values are moved after the write."""

    def append_layer(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one layer's tokens, all in one write, and then make the copies."""
        manager, late = self.kv_manager, []

        def put_off(layer_idx: int, block_id: int) -> int:
            old = manager.info(block_id)
            new_id = manager.allocate_block(layer_idx, start=old.start)
            manager.set_length(new_id, old.length)
            manager.deallocate_block(block_id)
            late.append((old.block_index, manager.info(new_id).block_index))
            return new_id

        with replaced(manager, "copy_on_write", lambda _: put_off):
            super().append_layer(layer_idx, block_ids_list, key_new, value_new)
        for source, target in late:
            for cache in (manager.k_cache, manager.v_cache):
                cache[layer_idx, target] = cache[layer_idx, source]


# --- what an append asks of the manager and the cache --------------------------------------------------

NUM_REQUESTS = 8


def step_work(engine: InferenceEngine) -> str:
    """How often two decode steps of 8 requests write keys into the cache and call the block manager: one in
    which all last blocks have room, and one in which all are full."""
    prompts = steady_prompts(NUM_REQUESTS, lengths=(engine.kv_manager.block_size - 5,))
    try:
        with steady_decode(engine, prompts, warmup_steps=3):
            with_room = _work_of_a_step(engine)
            engine.step()  # into the last slot
            at_a_boundary = _work_of_a_step(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"work: not counted, because the engine {raised(error)}"
    return f"{NUM_REQUESTS} requests with room: {with_room}; all at a boundary: {at_a_boundary}"


def _work_of_a_step(engine: InferenceEngine) -> str:
    k_cache = engine.kv_manager.k_cache
    addresses = range(k_cache.data_ptr(), k_cache.data_ptr() + k_cache.nbytes)
    with LaunchRecorder() as seen:
        calls, _ = count_calls(engine)
    in_place = [launch.args[0] for launch in seen.launches if launch.name.endswith("_")]  # as in index_put_
    writes = sum(isinstance(written, Tensor) and written.data_ptr() in addresses for written in in_place)
    return f"{writes} writes, {calls} calls"
