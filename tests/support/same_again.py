"""A schedule of requests that join at different moments, to be run again and again, here and elsewhere."""

from helpers import GREEDY, SEEDED, make_engine

from labkit import SamplingParams

PROMPTS = [(1, 2, 3), tuple(range(20, 31)), (1, 2, 3, 4, 5, 6), (7,), (1, 2, 3), (1, 2, 3, 9)]
EACH_PARAMS = [GREEDY, SEEDED, SamplingParams(9, temperature=1.0, seed=4), SEEDED, SEEDED, GREEDY]
JOINS_AT = [0, 0, 1, 2, 4, 5]  # the step before which each request comes


def outputs_of(options) -> list[list[list[int]]]:
    """What each step of the schedule hands out: a request and its token, in order.

    The pool is so small that requests are preempted and prompts evicted.
    """
    engine = make_engine(options=options, max_blocks_per_layer=9, max_batch_size=4)
    steps, waiting = [], list(zip(JOINS_AT, PROMPTS, EACH_PARAMS, strict=True))
    while waiting or engine.has_work:
        while waiting and waiting[0][0] == len(steps):
            engine.add_request(*waiting.pop(0)[1:])
        steps.append([[output.request_id, output.token_id] for output in engine.step()])
        assert len(steps) < 300
    assert engine.stats().counters.preemptions + engine.stats().prefix_evictions > 0
    return steps
