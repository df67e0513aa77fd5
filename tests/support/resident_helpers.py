"""Engines whose decode step is on the device: options and requests."""

import pytest
import torch
from helpers import ENGINES, GREEDY, SEEDED, make_engine, tokens_alone

from labkit import InferenceEngine, SamplingParams
from labkit.engine.step.graphed import batch_buckets
from labkit.engine.step.lanes import LanedDeviceStep

NAMES = {options: name for name, options in ENGINES.items()}  # some have two
# Without drafts: their steps are not decode steps.
ALL_RESIDENT = {
    name: options
    for options, name in NAMES.items()
    if options.block_tables == "resident" and options.speculation == "none"
}
all_resident = pytest.mark.parametrize("options", ALL_RESIDENT.values(), ids=ALL_RESIDENT)
PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, SEEDED, GREEDY]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]


class FromTwoRows(LanedDeviceStep):
    """So that small batches have halves, too."""

    least_rows = 2


TEXTS = ["To be, or not", "O", "The king is", "Romeo, wherefore art thou", "To be", "My lord,", "What"]


def gpu_engine(tiny, options, dtype=torch.float32, block_size=8, **scheduler) -> InferenceEngine:
    """The trained model. Each prompt is prefilled by itself, the same on every rung."""
    settings = {"block_size": block_size, "prefill_max_batch_size": 1, **scheduler}
    return make_engine(tiny, options, device="cuda", dtype=dtype, **settings)


def workload(tiny, num_requests, is_drawn=False):
    """Prompts, and for each how many tokens: another number each, so that a batch shrinks one by one."""
    prompts = [tiny.tokenizer.encode(TEXTS[i % len(TEXTS)]) for i in range(num_requests)]
    params = [
        SamplingParams(
            6 + 2 * i,
            temperature=0.8 if is_drawn and i % 2 else 0,
            top_k=50 if is_drawn and i % 2 else 0,
            top_p=0.95 if is_drawn and i % 4 == 1 else 1.0,
            seed=i,
            stop_on_eos=False,
        )
        for i in range(num_requests)
    ]
    return prompts, params


def pad_to_buckets(engine: InferenceEngine) -> list[tuple[int, int]]:
    """What graphs do, without graphs: each step is one of the next larger bucket. Batch and bucket, noted."""
    device_step = engine.decode_step.device_step
    buckets = batch_buckets(len(engine.decode_step.slots.slot_mapping))
    noted = []

    def padded(batch_size, max_context_len, is_greedy):
        bucket = next(size for size in buckets if size >= batch_size)
        noted.append((batch_size, bucket))
        return device_step(bucket, max_context_len, is_greedy)[:batch_size]

    engine.decode_step.device_step = padded
    return noted
