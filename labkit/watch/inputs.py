"""What the host tells the GPU in a step when all state is the host's (up to rung 05)."""

from collections.abc import Callable, Sequence

from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.engine.step.host import DecodeStep
from labkit.watch.replaced import noting, replaced
from labkit.watch.writes import record_writes

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
