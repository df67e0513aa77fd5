"""transformers' `generate`: batch after batch, with a cache that grows or one of its full size."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.bench.limit import synchronize
from labkit.bench.peers.run import Peer, PeerRun, refuse_arrivals
from labkit.bench.workload import Request, Workload
from labkit.model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DYNAMIC = "transformers, dynamic cache"
STATIC = "transformers, static cache"
PADDED = "transformers, static cache, padded vocabulary"
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
