"""A steady decode: a fixed batch, every request in the middle of its text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from labkit.engine import InferenceEngine, SamplingParams


def steady_prompts(batch_size: int, lengths: Sequence[int]) -> list[list[int]]:
    """Prompts for `batch_size` requests, as token ids, of these lengths in turn; one length makes positions
    equal."""
    return [list(range(1, 1 + lengths[b % len(lengths)])) for b in range(batch_size)]


@contextmanager
def steady_decode(
    engine: InferenceEngine,
    prompts: Sequence[Sequence[int]],
    warmup_steps: int = 3,
    max_new_tokens: int | None = None,
) -> Iterator[list[int]]:
    """Inside the block, hold `engine` in a steady decode of these prompts; its value is the requests' ids.

    They are cancelled at the end. max_new_tokens: how many tokens each can make; None: until the model has no
    position left.
    """
    room = engine.model.config.max_positions - max(map(len, prompts))
    params = SamplingParams(max_new_tokens=max_new_tokens or room, stop_on_eos=False)
    request_ids = [engine.add_request(list(prompt), params) for prompt in prompts]
    try:
        while engine.scheduler.waiting or engine.scheduler.joining:
            engine.step()
        for _ in range(warmup_steps):
            engine.step()
        yield request_ids
    finally:
        for request_id in request_ids:
            engine.cancel(request_id)
