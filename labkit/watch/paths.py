"""How the block of each decoded token was made ready, step by step."""

from collections import Counter

from labkit.engine import InferenceEngine

READY_PATHS = ("in_place", "boundary", "copy_on_write", "first")  # by the names of the engine's counter


def record_paths(engine: InferenceEngine, num_steps: int) -> list[dict[str, int]]:
    """Run `num_steps` steps; for each step, how many tokens took each of READY_PATHS. Tokens are not kept.

    All layers move in step, so a token is counted once, not once per layer.
    """
    steps = []
    before = engine.stats().append_paths
    for _ in range(num_steps):
        engine.step()
        after = engine.stats().append_paths
        taken = Counter(after) - Counter(before)
        steps.append({path: taken[path] // engine.kv_manager.num_tables for path in READY_PATHS})
        before = after
    return steps
