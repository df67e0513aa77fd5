"""What the bookkeeping asks of each K/V write, on rungs whose host says where it goes (up to 05)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.engine import InferenceEngine
from labkit.watch.replaced import replaced
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
