"""transformers' continuous batching: requests join and leave a batch, over a paged cache."""

import time
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from labkit.bench.peers.generate import sampling_of
from labkit.bench.peers.run import Peer, PeerRun, one_rule
from labkit.bench.workload import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching import ContinuousBatchingManager

CONTINUOUS = "transformers, continuous batching"
PAGE = 256  # tokens of a block: transformers' own choice, and what flash attention takes
PROMPT_TOKENS = 4096  # of a step, at most: the mask has a row for each


def continuous_peer(workload: Workload, reference: "PreTrainedModel") -> Peer:
    """transformers' continuous batching with a cache for `max_batch_size` of the longest requests.

    reference: a model of its own, for its attention is replaced while requests run. Every run has a fresh
    manager, made before the clock starts, so that no prefix is left from the run before.
    Raises CannotServeError if some requests draw and others do not: one rule holds for all.
    """
    one_rule(workload)
    return partial(run_continuous, workload, reference)


def run_continuous(workload: Workload, reference: "PreTrainedModel") -> PeerRun:
    """Serve the workload with continuous batching, each request from the moment at which it arrives.

    The moments of tokens are those at which transformers' thread has them.
    """
    from transformers import GenerationConfig

    picking = GenerationConfig(eos_token_id=-1, **sampling_of(workload.requests))
    managed = reference.continuous_batching_context_manager(
        generation_config=picking, timeout=5, continuous_batching_config=cache_of(workload)
    )
    prompts, request_ids, asked_at = workload.prompt_ids(), [], []
    with managed as manager:
        started = time.perf_counter()
        for prompt, request in zip(prompts, workload.requests, strict=True):
            time.sleep(max(0.0, started + request.arrives_at - time.perf_counter()))
            asked_at.append(time.perf_counter())
            request_ids.append(
                manager.add_request(
                    list(prompt),
                    max_new_tokens=request.params.max_new_tokens,
                    record_timestamps=True,
                    eos_token_id=-1,  # none: every request makes all its tokens
                )
            )
        outputs = collect(manager, len(request_ids))
        ended = time.perf_counter()
    done = [outputs[request_id] for request_id in request_ids]
    if failed := [output.error for output in done if output.error]:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    times = [output.timestamps for output in done]
    return PeerRun(
        ended - started,
        min(at[0] for at in times) - started,
        tuple(tuple(output.generated_tokens) for output in done),
        tuple(at[0] - asked for at, asked in zip(times, asked_at, strict=True)),
        tuple(later - earlier for at in times for earlier, later in pairwise(at)),
    )


def collect(manager: "ContinuousBatchingManager", count: int) -> dict[str, Any]:
    """The outputs of `count` requests, by id, once all are done. Raises RuntimeError if the manager stops."""
    outputs: dict[str, Any] = {}
    while len(outputs) < count:
        output = manager.get_result(timeout=1)
        if output is not None and output.is_finished():
            outputs[output.request_id] = output
        elif output is None and not manager.is_running():
            raise RuntimeError(f"it stopped with {count - len(outputs)} requests not done")
    return outputs


def cache_of(workload: Workload) -> Any:
    """The settings of the cache: without a number of blocks it would take all memory."""
    from transformers import ContinuousBatchingConfig

    known = {field.name for field in fields(ContinuousBatchingConfig)}
    batch_size = min(len(workload.requests), workload.scheduler.max_batch_size)
    prompt_tokens = sum(map(len, workload.prompt_ids()))
    settings = {
        "page_size" if "page_size" in known else "block_size": PAGE,  # its name until transformers 5.17
        "num_blocks": batch_size * -(-workload.longest // PAGE) + 1,
        "max_batch_tokens": max(batch_size, min(prompt_tokens, PROMPT_TOKENS)),
        "max_requests_per_batch": batch_size,
        "allow_block_sharing": workload.cache.prefix_cache,
        "seed": 0,
    }
    if "auto_switch_to_flash" in known:  # else a kernel that is not installed would be fetched
        settings["auto_switch_to_flash"] = find_spec("flash_attn") is not None
    return ContinuousBatchingConfig(**{name: settings[name] for name in settings if name in known})
