"""One workload through labkit and through other engines, its peers, with the same weights.

A peer is given token ids and gives token ids back; it is timed from outside, by one clock, from the moment
it has the requests until it has handed over every token.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from labkit.bench.comparison import in_turn
from labkit.bench.limit import synchronize
from labkit.bench.workload import Request, Workload
from labkit.engine import InferenceEngine
from labkit.engine.device import default_dtype, pick_device
from labkit.ladder import LADDER
from labkit.model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DYNAMIC = "transformers, dynamic cache"
STATIC = "transformers, static cache"
VLLM = "vllm"
TokenIds = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PeerRun:
    """One run of a workload through an engine. Times are in seconds."""

    seconds: float
    first_token_seconds: float | None  # to the first batch's first tokens; None where it is not known
    token_ids: TokenIds  # of each request, in the order of the workload

    @property
    def tokens(self) -> int:
        """Tokens generated, counted as ids."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole run, prefill included."""
        return self.tokens / self.seconds


Peer = Callable[[], PeerRun]


# --- labkit --------------------------------------------------------------------------------------------


def labkit_peer(workload: Workload, rung: str) -> Peer:
    """labkit at a rung, with one engine for all runs; its prefix cache is emptied before each."""
    return partial(run_labkit, workload, workload.make_engine(LADDER[rung].options))


def run_labkit(workload: Workload, engine: InferenceEngine) -> PeerRun:
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


# --- transformers --------------------------------------------------------------------------------------


def as_transformers(model: LanguageModel) -> "PreTrainedModel":
    """transformers' own model with a copy of this model's weights, on its device and in its dtype."""
    return model.network.as_transformers().to(model.device, model.dtype).requires_grad_(False)


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


def transformers_peer(
    workload: Workload, reference: "PreTrainedModel", cache_implementation: str | None
) -> Peer:
    """transformers' `generate`, batch after batch of `max_batch_size` requests.

    cache_implementation: None for its default, the dynamic cache. With "static" the cache has its full size
    from the start; on a GPU transformers then compiles the forward and replays it as a CUDA graph.
    """
    return partial(run_transformers, workload, reference, cache_implementation)


def run_transformers(
    workload: Workload, reference: "PreTrainedModel", cache_implementation: str | None
) -> PeerRun:
    """Serve the workload with transformers' `generate`, one batch after another, timed from ids to ids.

    A batch goes on until its longest request is done; what others made beyond their own end is not counted.
    If one of its requests draws, all do.
    """
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
            **transformers_sampling(workload.requests[i : i + size]),
        )
        made = out[:, input_ids.shape[1] :].tolist()
        token_ids += [tuple(ids[:length]) for ids, length in zip(made, lengths, strict=True)]
    ended = time.perf_counter()
    return PeerRun(ended - started, first.seen_at - started, tuple(token_ids))


def transformers_sampling(requests: Sequence[Request]) -> dict[str, bool | float | int]:
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


# --- vLLM, where it is installed -----------------------------------------------------------------------


def vllm_peer(workload: Workload, directory: Path) -> Peer:
    """vLLM's offline engine on the checkpoint in `directory`, from token ids to token ids."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype=str(workload.model.dtype).removeprefix("torch."),
        max_num_seqs=workload.scheduler.max_batch_size,
        max_model_len=workload.model.config.max_positions,
        enable_prefix_caching=workload.cache.prefix_cache,
        gpu_memory_utilization=0.4,  # the others' caches are on the same GPU
    )
    params = [
        SamplingParams(
            temperature=asked.temperature,
            top_k=asked.top_k or -1,
            top_p=asked.top_p,
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


# --- all of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerRuns:
    """Runs made in turn, by engine, and why an engine that was meant to run has none."""

    runs: dict[str, list[PeerRun]]
    left_out: dict[str, str]
    compiled: bool  # whether transformers compiled its forward for the static cache
    requests: int

    def equal_requests(self, run: PeerRun) -> int:
        """How many requests got the tokens that the first engine's first run gave them."""
        expected = next(iter(self.runs.values()))[0].token_ids
        return sum(map(tuple.__eq__, run.token_ids, expected))


def run_peers(
    workload: Workload,
    rungs: Sequence[str],
    rounds: int,
    progress: Callable[[], object] = lambda: None,
) -> PeerRuns:
    """Run the workload through labkit at these rungs and through every peer there is, in turn.

    Each has its warm-up first: compiling and capturing are no part of a run. A peer that fails there is left
    out, with its reason; a rung that fails raises. progress: called after each run, warm-ups too.
    Raises OptionError unless all requests are there at the start.
    """
    workload.require_all_at_once()
    device = pick_device(workload.device)
    workload = replace(workload, model=workload.model.to(device, default_dtype(device)), device=device)
    peers: dict[str, Peer] = {}
    left_out: dict[str, str] = {}
    for rung in rungs:
        peers[f"labkit {rung}"] = labkit_peer(workload, rung)
        peers[f"labkit {rung}"]()
        progress()
    with TemporaryDirectory() as directory, quiet_transformers():
        reference = as_transformers(workload.model)
        others: dict[str, Callable[[], Peer]] = {
            DYNAMIC: lambda: transformers_peer(workload, reference, None),
            STATIC: lambda: transformers_peer(workload, reference, "static"),
        }
        if find_spec("vllm") is None:
            left_out[VLLM] = "not installed here"
        else:
            reference.save_pretrained(directory)
            others[VLLM] = lambda: vllm_peer(workload, Path(directory))
        for name, make in others.items():
            try:
                peer = make()
                peer()
                peer()  # a compiled forward may be compiled again, or captured, at its second call
            except (
                Exception
            ) as error:  # whatever someone else's engine raises: it is left out, and it says why
                left_out[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            else:
                peers[name] = peer
            progress()
        made = in_turn(list(peers.values()), rounds, progress)
        compiled = hasattr(reference, "_compiled_call")
    return PeerRuns(dict(zip(peers, made, strict=True)), left_out, compiled, len(workload.requests))


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
