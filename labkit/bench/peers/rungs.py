"""labkit at a rung, as a peer among others."""

import gc
import time
from functools import partial

from labkit.bench.peers.run import Peer, PeerRun
from labkit.bench.streaming import felt_latency, read_by_tasks
from labkit.bench.workload import Workload
from labkit.engine import InferenceEngine, StreamingServer
from labkit.ladder import LADDER


def labkit_peer(workload: Workload, rung: str) -> Peer:
    """labkit at a rung, with one engine for all runs; its prefix cache is emptied before each.

    Requests that come one after another are served by a `StreamingServer`, the others by steps in a loop.
    """
    run = stream if workload.has_arrivals else step_through
    return partial(run, workload, workload.make_engine(LADDER[rung].options))


def step_through(workload: Workload, engine: InferenceEngine) -> PeerRun:
    """Serve the workload with `engine.step()` in a loop, timed from token ids to token ids."""
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    first_tokens, token_ids = None, {}
    started = time.perf_counter()
    asked = zip(workload.prompt_ids(), workload.requests, strict=True)
    request_ids = [engine.add_request(prompt, request.params) for prompt, request in asked]
    while engine.has_work:
        for output in engine.step():
            if first_tokens is None:
                first_tokens = time.perf_counter()
            if output.completion is not None:
                token_ids[output.request_id] = output.completion.token_ids
    ended = time.perf_counter()
    return PeerRun(ended - started, first_tokens - started, tuple(token_ids[i] for i in request_ids))


def stream(workload: Workload, engine: InferenceEngine) -> PeerRun:
    """Serve requests as they come, each with a task that reads its tokens: the times are those tasks'."""
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    gc.collect()
    consumers = read_by_tasks(StreamingServer(engine), workload, lambda tokens: None)
    felt = felt_latency(consumers)
    made = tuple(tuple(consumer.completion.token_ids) for consumer in consumers)
    return PeerRun(felt.span, None, made, felt.ttft, felt.itl)
