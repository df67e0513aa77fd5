"""Lesson 06: the host's sampler and the device's, on the same logits."""

import pandas as pd
import torch

from labkit.engine import SamplingParams
from labkit.engine.sampling import sample, sample_any, uniform_number
from labkit.engine.sampling.device import NO_TOKEN
from labkit.kernels.distribution import pack_states, unpack_states

MANNERS = {  # of sampling, by name: the settings of `SamplingParams`
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 20},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "all three": {"temperature": 0.7, "top_k": 50, "top_p": 0.95},
}


def sampled_both_ways(device: torch.device, rows_each: int = 50, vocab_size: int = 300) -> pd.DataFrame:
    """Compare the tokens that the host's sampler and the device's draw from random logits, a row per manner
    of sampling. All manners are in one batch, and each has a row of logits with a NaN."""
    names = [name for name in MANNERS for _ in range(rows_each)]
    params = [SamplingParams(seed=7 * b - 99, **MANNERS[name]) for b, name in enumerate(names)]
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(len(names), vocab_size, generator=generator).to(device)
    logits[::rows_each, 5] = torch.nan
    places = [b % 40 for b in range(len(names))]  # how many numbers each row has drawn
    uniforms = [uniform_number(p.seed, i) for p, i in zip(params, places, strict=True)]
    on_host = sample(logits, params, uniforms)

    states = pack_states([p.state(p.seed, i) for p, i in zip(params, places, strict=True)])
    on_device = sample_any(logits, unpack_states(torch.from_numpy(states).to(device))).tolist()
    rows = {}
    for name in MANNERS:
        pairs = [(h, d) for n, h, d in zip(names, on_host, on_device, strict=True) if n == name]
        rows[name] = {
            "rows": len(pairs),
            "the same token": sum(h == d for h, d in pairs),
            "None on the host, -1 on the device": sum(h is None and d == NO_TOKEN for h, d in pairs),
            "distinct tokens drawn": len({h for h, _ in pairs}),
        }
    return pd.DataFrame(rows).T
