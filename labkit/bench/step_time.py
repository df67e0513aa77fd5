"""How long a decode step takes."""

import time

from labkit.bench.limit import synchronize
from labkit.engine import InferenceEngine


def time_decode_steps(engine: InferenceEngine, num_steps: int) -> list[float]:
    """Seconds of each of `num_steps` decode steps of an engine in `watch.steady_decode`, synchronized."""
    seconds = []
    for _ in range(num_steps):
        synchronize(engine.device)
        started = time.perf_counter()
        engine.step()
        synchronize(engine.device)
        seconds.append(time.perf_counter() - started)
    return seconds
