"""Lesson 06: rows that are sent too late, and where tokens are written then."""

from collections.abc import Sequence

from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession, SamplingParams
from labkit.engine.request import Request
from labkit.engine.step.slots import DeviceSlots
from labkit.kvcache import KVBlockManager
from labkit.learn.lesson_02.toy import frame_of_sessions
from labkit.show import PoolFrame
from labkit.watch import noting, replaced


class LateRows(DeviceSlots):
    """Slots that are wrong on purpose: where a list of blocks has changed, the row is sent a step later."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._due: set[InferenceSession] = set()

    def update(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        changed: Sequence[Sequence[int]],
    ) -> None:
        """Send what a step of these requests needs, but in place of its rows those of the step before."""
        due = [b for b, session in enumerate(sessions) if session in self._due]
        self._due = {sessions[b] for places in changed for b in places if self.knows(sessions[b])}
        super().update(requests, sessions, [due])


NUM_BLOCKS = 4  # that are drawn
PROMPTS = {"A": (5, 6, 7), "B": (8, 9)}
FIRST = {"A": 1, "B": 11}  # the number of a request's first token; the others count on
OWNERS = {FIRST[name] + i: name for name in PROMPTS for i in range(10)}


def boundary_frames(engine: InferenceEngine) -> list[PoolFrame]:
    """Layer 0's pool of an engine with blocks of 4 tokens that decodes A and B: when A's first block is full,
    and after each of the next two steps, in which first A and then B write to a second block.

    A token is drawn where the device wrote it, by the block and the place that it looked up itself.
    """
    for prompt in PROMPTS.values():
        engine.add_request(prompt, SamplingParams(8, stop_on_eos=False))
    engine.step()  # the prefill
    manager, sessions = engine.kv_manager, dict(zip(PROMPTS, engine.scheduler.running.values(), strict=True))
    slots = [[0] * manager.block_size for _ in range(NUM_BLOCKS)]
    for name, session in sessions.items():
        for i in range(session.num_tokens):
            block = session.block_ids_per_layer[0][i // manager.block_size]
            slots[block][i % manager.block_size] = FIRST[name] + i

    def note(k_cache: Tensor, *others: Tensor) -> None:
        if k_cache.data_ptr() == manager.k_cache.data_ptr():  # layer 0's
            block_idx, pos = (indices.tolist() for indices in others[-2:])
            for name, block, slot in zip(sessions, block_idx, pos, strict=True):
                slots[block][slot] = FIRST[name] + sessions[name].num_tokens

    frames = []
    with replaced(engine.decode_step.device_step.attention, "kv_append", noting(note)):
        for title in ("A's block is full", "A's fifth token", "B's fifth token"):
            engine.step()
            frames.append(frame_of_sessions(title, slots, sessions))
    return frames
