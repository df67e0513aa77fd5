"""From logits to tokens, by the host, which reads them back, or on the device.

On the device parameters are tensors with a number for each row, and nothing looks at a number to decide what
runs next: no value is read back and no row is picked out. So a CUDA graph can hold a sampler. Both give the
same tokens, bit for bit. A row whose logits are not finite numbers gets None, or NO_TOKEN on the device, and
changes no other row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.engine.sampling.params import SamplingParams
from labkit.kernels.decode_ends import NO_TOKEN  # where the host's `sample` says None
from labkit.kernels.distribution import (
    DTYPES,
    FILTERS,
    OFF,
    SPLITMIX64,
    SamplingState,
    likeliest,
    pick,
    uniform_numbers,
    warp,
)


def uniform_number(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of a seed's stream: SplitMix64 (Steele et al., 2014).

    A function of its arguments alone, so a request draws the same numbers in any batch, after any
    preemption and when a failed step is tried again.
    """
    mask = 2**64 - 1
    step, first, second = SPLITMIX64

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * first & mask
        z = (z ^ (z >> 27)) * second & mask
        return z ^ (z >> 31)

    state = mix(seed & mask) + (index + 1) * step
    return (mix(state & mask) >> 11) * 2.0**-53


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int | None]:
    """One token for each row of logits [B, V]; None for a row whose logits are not finite numbers.

    uniforms: for each row, the number in [0, 1) that decides its draw; greedy rows do not use it.
    `sample_any` gives the same tokens without reading anything back.
    """
    best_ids, finite = likeliest(logits)
    is_finite = finite.tolist()
    token_ids = best_ids.tolist()
    drawn = [b for b, p in enumerate(params) if is_finite[b] and not p.is_greedy]
    if drawn:
        probabilities = warped_probabilities(logits[drawn], [params[b] for b in drawn])
        for b, token_id in zip(drawn, draw(probabilities, [uniforms[b] for b in drawn]), strict=True):
            token_ids[b] = token_id
    return [token_id if ok else None for token_id, ok in zip(token_ids, is_finite, strict=True)]


def warped_probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The probabilities [B, V] float32 that each row's token is drawn from, after its params."""
    return warp(logits, rows_state(params, logits.device))


def rows_state(params: Sequence[SamplingParams], device: torch.device) -> SamplingState:
    """What `warp` asks of rows of these params; None for a filter that is off in all of them."""
    columns = SamplingState(*zip(*(p.state(0, 0) for p in params), strict=True))._asdict()
    made = {"temperatures", *(name for name in FILTERS if set(columns[name]) != {getattr(OFF, name)})}
    return SamplingState(
        *(
            torch.tensor(columns[name], dtype=dtype, device=device) if name in made else None
            for name, dtype in DTYPES._asdict().items()
        )
    )


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Draw one token id per row of probabilities [B, V], by the row's random number in [0, 1)."""
    u = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)
    return pick(probabilities, u).tolist()


def sample_greedy(logits: Tensor) -> Tensor:
    """The likeliest token [B] int64 of each row of logits [B, V]; NO_TOKEN where they are not finite."""
    token_ids, is_finite = likeliest(logits)
    return token_ids.masked_fill(~is_finite, NO_TOKEN)


def sample_any(logits: Tensor, state: SamplingState) -> Tensor:
    """One token [B] int64 for each row of logits [B, V]: drawn, or the likeliest where temperature is 0.

    state: of the rows, as `warp` takes it.
    """
    drawn = pick(warp(logits, state), uniform_numbers(state.seeds, state.draws))
    likeliest_ids, is_finite = likeliest(logits)
    return torch.where(state.temperatures == 0, likeliest_ids, drawn).masked_fill(~is_finite, NO_TOKEN)
