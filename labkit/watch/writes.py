"""What the host tells the GPU in a step when all state is the host's (up to rung 05)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.watch.replaced import noting, replaced
from labkit.watch.steady import steady_decode


@dataclass(frozen=True)
class Write:
    """One layer's K/V write: the batch index, block and position of each request, and the path it took."""

    batch_idx: tuple[int, ...]
    block_idx: tuple[int, ...]
    pos: tuple[int, ...]
    path: str

    @property
    def told(self) -> dict[str, tuple[int, ...] | int]:
        """The indices that reach the kernel on this path: tensors as tuples, arguments as numbers."""
        if self.path == "full_batch":
            return {"block_idx": self.block_idx, "pos": self.pos[0]}
        if self.path == "identity_pos":
            return {"block_idx": self.block_idx, "pos": self.pos}
        return {"batch_idx": self.batch_idx, "block_idx": self.block_idx, "pos": self.pos}


@contextmanager
def record_writes(engine: InferenceEngine) -> Iterator[list[Write]]:
    """Record the K/V writes that an engine makes inside the block, one per layer and step."""
    writes: list[Write] = []

    def recording(inner: Callable[..., str]) -> Callable[..., str]:
        def write(*arguments: Any) -> str:  # those of a `KVWrite`, whose last three are the indices
            path = inner(*arguments)
            batch_idx, block_idx, pos = map(tuple, arguments[-3:])
            writes.append(Write(batch_idx, block_idx, pos, path))
            return path

        return write

    with replaced(engine.kv_manager.kv_write, "write", recording):
        yield writes


def steady_write(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> Write:
    """The first layer's write in a decode step of these prompts, on blocks that were used before."""
    with steady_decode(engine, prompts):
        pass  # these give their blocks back, and the last to go back is the first to be used again
    with steady_decode(engine, prompts, warmup_steps=0), record_writes(engine) as writes:
        engine.step()
    return writes[0]


Told = dict[str, list[int]]  # numbers by what they are; those of the layers one after the other


def record_inputs(engine: InferenceEngine, num_steps: int) -> list[Told]:
    """Run `num_steps` decode steps of an engine whose state is the host's; all numbers that each step sends.

    Raises ValueError for an engine of rung 06 or above.
    """
    step = engine.decode_step
    if not isinstance(step, DecodeStep):
        raise ValueError(
            "an engine whose state is on the device tells it other things; see watch.record_sends"
        )
    told: list[Told] = []

    def on_decode(sessions: Sequence[InferenceSession], last_token_ids: Sequence[int]) -> None:
        lengths = [session.num_tokens for session in sessions]
        now: Told = {"block tables": []}
        now |= {"context lengths": lengths, "token ids": list(last_token_ids), "positions": lengths}
        told.append(now)

    def building(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def build(sessions: Sequence[InferenceSession]) -> Tensor:
            tables = inner(sessions)
            told[-1]["block tables"] = tables.flatten().tolist()
            return tables

        return build

    decoding = replaced(step, "decode_step_sessions", noting(on_decode))
    with decoding, replaced(step.block_tables, "build", building):
        for _ in range(num_steps):
            with record_writes(engine) as writes:
                engine.step()
            for write in writes:
                for name, numbers in write.told.items():
                    if not isinstance(numbers, int):  # a number is an argument of the kernel
                        told[-1].setdefault(f"{name} of each layer", []).extend(numbers)
    return told
