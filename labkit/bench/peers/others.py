"""Other engines: transformers' `generate` and its continuous batching, and vLLM where it is installed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.bench.limit import synchronize
from labkit.bench.peers.run import CannotServeError, Peer, PeerRun, one_rule, refuse_arrivals
from labkit.bench.workload import Request, Workload
from labkit.model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching import ContinuousBatchingManager

DYNAMIC = "transformers, dynamic cache"
STATIC = "transformers, static cache"
PADDED = "transformers, static cache, padded vocabulary"
CONTINUOUS = "transformers, continuous batching"
VLLM = "vllm"
ROWS = 64  # a multiple of which a padded head has: libraries are fast where rows are aligned


def as_transformers(model: LanguageModel) -> "PreTrainedModel":
    """transformers' own model with a copy of this model's weights, on its device and in its dtype."""
    return model.network.as_transformers().to(model.device, model.dtype).requires_grad_(False)


class PaddedHead(nn.Module):
    """An output layer with more rows than tokens, up to a multiple of ROWS; the logits are those of the
    tokens."""

    def __init__(self, weight: Tensor) -> None:
        """weight [V, E]: of the head without padding."""
        super().__init__()
        self.vocab_size = weight.shape[0]
        padded = F.pad(weight.detach(), (0, 0, 0, -self.vocab_size % ROWS))
        self.weight = nn.Parameter(padded, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., E] to logits [..., V]."""
        return F.linear(hidden, self.weight)[..., : self.vocab_size]


def with_padded_vocabulary(reference: "PreTrainedModel") -> "PreTrainedModel":
    """The model itself, its output layer padded."""
    reference.set_output_embeddings(PaddedHead(reference.get_output_embeddings().weight))
    return reference


class FirstLogits:
    """A logits processor that changes nothing: it notes when a first token's logits are there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seen_at: float | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.seen_at is None:
            synchronize(self.device)
            self.seen_at = time.perf_counter()
        return scores


def generate_peer(workload: Workload, reference: "PreTrainedModel", cache_implementation: str | None) -> Peer:
    """transformers' `generate`, batch after batch of `max_batch_size` requests, timed from ids to ids.

    A batch goes on until its longest request is done; what others made beyond their own end is not counted.
    If one of its requests draws, all do. cache_implementation: None for its default, the dynamic cache. With
    "static" the cache has its full size from the start; on a GPU transformers then compiles the forward and
    replays it as a CUDA graph. Raises CannotServeError for requests that come one after another.
    """
    refuse_arrivals(workload)

    def run() -> PeerRun:
        prompts, size = workload.prompt_ids(), workload.scheduler.max_batch_size
        first, token_ids = FirstLogits(reference.device), []
        started = time.perf_counter()
        for i in range(0, len(prompts), size):
            input_ids, attention_mask = left_padded(prompts[i : i + size], reference.device)
            lengths = workload.max_new_tokens[i : i + size]
            out = reference.generate(
                input_ids,
                attention_mask=attention_mask,
                max_new_tokens=max(lengths),
                pad_token_id=0,
                cache_implementation=cache_implementation,
                logits_processor=[first],
                **sampling_of(workload.requests[i : i + size]),
            )
            made = out[:, input_ids.shape[1] :].tolist()
            token_ids += [tuple(ids[:length]) for ids, length in zip(made, lengths, strict=True)]
        ended = time.perf_counter()
        return PeerRun(ended - started, first.seen_at - started, tuple(token_ids))

    return run


def sampling_of(requests: Sequence[Request]) -> dict[str, bool | float | int]:
    """How transformers picks the tokens of a batch: as the first of its requests that draws, or greedily."""
    for params in (request.params for request in requests):
        if not params.is_greedy:
            return {
                "do_sample": True,
                "temperature": params.temperature,
                "top_k": params.top_k,
                "top_p": params.top_p,
            }
    return {"do_sample": False}


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts [B, T] with padding before the shorter ones, and a mask [B, T] that is 0 on padding."""
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    ids = [[0] * n + list(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * n + [1] * len(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside the block, transformers shows no progress bars and no warnings."""
    from transformers.utils import logging

    level, bar_was_on = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar_was_on:
            logging.enable_progress_bar()


# --- continuous batching: requests join and leave a batch, over a paged cache -----------------------------

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


# --- vLLM ------------------------------------------------------------------------------------------------


def vllm_peer(workload: Workload, reference: "PreTrainedModel") -> Peer:
    """vLLM's offline engine with the weights of `reference`, from token ids to token ids.

    Raises CannotServeError where it is not installed, and for requests that come one after another.
    """
    if find_spec("vllm") is None:
        raise CannotServeError("not installed here")
    refuse_arrivals(workload)
    from vllm import LLM, SamplingParams

    with TemporaryDirectory() as directory:
        reference.save_pretrained(directory)
        llm = LLM(
            model=str(Path(directory)),
            skip_tokenizer_init=True,
            dtype=str(workload.model.dtype).removeprefix("torch."),
            max_num_seqs=workload.scheduler.max_batch_size,
            max_model_len=workload.max_positions,
            enable_prefix_caching=workload.cache.prefix_cache,
            gpu_memory_utilization=0.4,  # the others' caches are on the same GPU
        )
    params = [
        SamplingParams(
            temperature=asked.temperature,
            top_k=asked.top_k or -1,
            top_p=asked.top_p,
            min_p=asked.min_p,
            seed=asked.seed,
            max_tokens=asked.max_new_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        for asked in (request.params for request in workload.requests)
    ]
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in workload.prompt_ids()]

    def run() -> PeerRun:
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        ended = time.perf_counter()
        return PeerRun(ended - started, None, tuple(tuple(out.outputs[0].token_ids) for out in outputs))

    return run
