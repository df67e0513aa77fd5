"""Lesson 02: a cache whose keys can be read, an append that copies too late, and two batches."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams
from labkit.engine.parts import Part
from labkit.kvcache import AppendBatched, KVBlockManager
from labkit.learn.lesson_05.work import tiny_manager
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.show import PoolFrame
from labkit.watch import replaced, steady_prompts

# --- caches so small that each of their numbers can be read, and appends that run on them --------------


def readable_manager(num_blocks: int, device: torch.device | str = "cpu") -> KVBlockManager:
    """A block manager of one layer and one head of one number, with blocks of 4 tokens: a token's key is its
    number."""
    return tiny_manager(KVBlockManager, max_blocks_per_layer=num_blocks, device=device)


def readable_session(manager: KVBlockManager, prompt: Sequence[int]) -> InferenceSession:
    """A session with this prompt in a readable cache: the key and the value of each token are its number."""
    session = InferenceSession(manager)
    numbers = torch.tensor(prompt, dtype=torch.float32, device=manager.k_cache.device)
    numbers = numbers.view(1, 1, -1, 1)  # [L, H, T, D]
    session.append_prompt(numbers, numbers)
    return session


def append_step(part: Part, sessions: Sequence[InferenceSession], tokens: Sequence[int]) -> None:
    """Append a token behind each session of a readable cache, as a decode step does by this kv_append part.

    What the part raises passes through, and no session has counted its token then.
    """
    manager = sessions[0].kv_manager
    new = torch.tensor(tokens, dtype=torch.float32, device=manager.k_cache.device).view(-1, 1, 1)  # [B, H, D]
    part(manager).append(sessions, [new], [new])
    for session in sessions:
        session.num_tokens += 1


def reads(session: InferenceSession) -> list[int]:
    """The numbers of the tokens that attention would find behind a session's block table."""
    keys, _ = session.dense_kv()
    return keys.flatten().int().tolist()


def session_table(sessions: Mapping[str, InferenceSession]) -> pd.DataFrame:
    """A row per session, by name: its blocks, the tokens that the manager counts in them and that the session
    counts, and the numbers that attention reads."""
    rows = {
        name: {
            "blocks": str(session.block_ids_per_layer[0]),
            "tokens in the records": session.kv_manager.num_tokens(session.block_ids_per_layer[0]),
            "tokens the session counts": session.num_tokens,
            "reads": str(reads(session)),
        }
        for name, session in sessions.items()
    }
    return pd.DataFrame(rows).T


# --- what happens to the pool, moment by moment ----------------------------------------------------------


def moments_of(part: Part) -> list[PoolFrame]:
    """A and B, two sessions that share a block with tokens 1 and 2, append tokens 10 and 20 by a part: the
    pool before, on both sides of each write, and at the end."""
    manager = readable_manager(3)
    first = readable_session(manager, [1, 2])
    sessions = [first, first.fork()]
    frames = [frame_of("before", sessions)]

    def framing(inner: Callable) -> Callable:
        def framed(*arguments: object) -> object:
            frames.append(frame_of("blocks are ready", sessions))
            path = inner(*arguments)
            frames.append(frame_of("after the write", sessions))
            return path

        return framed

    with replaced(manager.kv_write, "write", framing):
        append_step(part, sessions, [10, 20])
    return [*frames, frame_of("at the end", sessions)]


def frame_of(title: str, sessions: Sequence[InferenceSession]) -> PoolFrame:
    """A readable cache of at most two blocks in use, and which of the sessions A and B hold each."""
    manager = sessions[0].kv_manager
    slots = manager.k_cache[0, :2, 0, :, 0].int().tolist()  # of [L, N, H, block_size, D]
    return frame_of_sessions(title, slots, dict(zip("AB", sessions, strict=True)))


def frame_of_sessions(
    title: str, slots: Sequence[Sequence[int]], sessions: Mapping[str, InferenceSession]
) -> PoolFrame:
    """The first blocks of layer 0's pool, by what is in their slots, and the names of those who hold each."""
    holders = tuple(
        "".join(name for name, session in sessions.items() if block in session.block_ids_per_layer[0])
        for block in range(len(slots))
    )
    return PoolFrame(title, tuple(map(tuple, slots)), holders)


# --- an append that is wrong on purpose ----------------------------------------------------------------


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


# --- engines with six requests each, whose last blocks are seldom, or all at once, full ----------------

NEW_TOKENS = SamplingParams(max_new_tokens=30, stop_on_eos=False)
SHARED = "ROMEO:\nGood night"
OTHERS = ("JULIET:\n", "O", "KING HENRY VI:\nWhat news from Warwick?", "First Citizen:\n")


def six_different(
    model: LanguageModel, options: EngineOptions, device: torch.device | str
) -> InferenceEngine:
    """An engine with blocks of 4 and six waiting requests: two with the same prompt, which was asked before,
    and four of other lengths. The prefix cache keeps one prompt only."""
    cache = CacheConfig(block_size=4, max_prefix_entries=1)
    engine = InferenceEngine(model, options, device=device, dtype=torch.float32, cache=cache)
    engine.generate([SHARED], SamplingParams(max_new_tokens=1))
    for prompt in (SHARED, SHARED, *OTHERS):
        engine.add_request(prompt, NEW_TOKENS)
    return engine


def six_equal(model: LanguageModel, options: EngineOptions, device: torch.device | str) -> InferenceEngine:
    """An engine with blocks of 4 and six waiting requests of equal length, without a prefix cache."""
    cache = CacheConfig(block_size=4, prefix_cache=False)
    engine = InferenceEngine(model, options, device=device, dtype=torch.float32, cache=cache)
    for prompt in steady_prompts(6, lengths=(6,)):
        engine.add_request(prompt, NEW_TOKENS)
    return engine
