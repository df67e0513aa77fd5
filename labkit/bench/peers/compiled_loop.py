"""A plain loop over a compiled decode step with a static cache, in the manner of gpt-fast.

No engine: a batch of requests of one length starts together and ends together. What is left is what
PyTorch's compiler makes of the model itself.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from labkit.bench.limit import synchronize
from labkit.bench.peers.others import PaddedHead
from labkit.bench.peers.run import CannotServeError, Peer, PeerRun, one_rule, refuse_arrivals
from labkit.bench.workload import Workload
from labkit.engine import SamplingParams
from labkit.model import Network
from labkit.model.prefill_attention import grouped_attention

COMPILED = "PyTorch, a compiled loop"

Step = Callable[[Tensor, Tensor], Tensor]  # token ids [B], their position [1] -> the next token ids [B]


class LayerCache(nn.Module):
    """Keys and values of a layer, of full size from the start.

    They are buffers, for a CUDA graph reads them where they lie.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, zeros: Tensor) -> None:
        """zeros [B, H, S, D]: as many positions as the longest text has."""
        super().__init__()
        self.register_buffer("keys", zeros.clone())
        self.register_buffer("values", zeros.clone())


class DecodeStep(nn.Module):
    """One more token for each request of a batch, all at the same position."""

    places: Tensor

    def __init__(self, network: Network, batch_size: int, num_positions: int, params: SamplingParams) -> None:
        super().__init__()
        self.network, self.params = network, params
        self.head = PaddedHead(network.lm_head.weight)
        config, like = network.config, network.lm_head.weight
        zeros = like.new_zeros(batch_size, config.num_kv_heads, num_positions, config.head_dim)
        self.caches = nn.ModuleList(LayerCache(zeros) for _ in range(config.num_layers))
        self.register_buffer("places", torch.arange(num_positions, device=like.device))

    def prefill(self, prompts: Tensor) -> Tensor:
        """Fill the cache from prompts [B, T]; the first new token ids [B]."""
        B, T = prompts.shape
        made = self.network.prefill(prompts, torch.full((B,), T, device=prompts.device))
        for cache, keys, values in zip(self.caches, made.keys, made.values, strict=True):
            cache.keys[:, :, :T] = keys
            cache.values[:, :, :T] = values
        return pick(made.last_logits, self.params)

    def forward(self, token_ids: Tensor, position: Tensor) -> Tensor:
        """The next token ids [B] after token_ids [B], which stand at position [1]."""
        seen = (self.places <= position)[None, None, None]

        def attend(layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            cache = self.caches[layer_idx]
            cache.keys[:, :, position] = key
            cache.values[:, :, position] = value
            return grouped_attention(query, cache.keys, cache.values, attn_mask=seen)

        positions = position.expand(token_ids.shape[0], 1)
        hidden = self.network(token_ids[:, None], positions, attend)
        return pick(self.head(hidden[:, 0]), self.params)


def pick(logits: Tensor, params: SamplingParams) -> Tensor:
    """Token ids [B] from logits [B, V]: the likeliest, or drawn without a wait for the host."""
    if params.is_greedy:
        return logits.argmax(dim=-1)
    likeliest, ids = torch.softmax(logits.float() / params.temperature, dim=-1).sort(dim=-1, descending=True)
    kept = likeliest * (likeliest.cumsum(dim=-1) - likeliest < params.top_p)
    if params.top_k:
        kept[:, params.top_k :] = 0
    drawn = (kept / torch.empty_like(kept).exponential_(1)).argmax(dim=-1, keepdim=True)
    return ids.gather(-1, drawn)[:, 0]


def compiled_peer(workload: Workload) -> Peer:
    """The loop for this workload. On a GPU its step is compiled, with CUDA graphs; on a CPU it runs as it is.

    Raises CannotServeError unless batches are full, of one length, and pick their tokens by one rule.
    """
    refuse_arrivals(workload)
    batch_size = min(len(workload.requests), workload.scheduler.max_batch_size)
    if (count := len(workload.requests)) % batch_size:
        raise CannotServeError(
            f"its batches have one size, and {count} requests make no full ones of {batch_size}"
        )
    if len(set(map(len, workload.prompt_ids()))) > 1 or len(set(workload.max_new_tokens)) > 1:
        raise CannotServeError("its requests have prompts and answers of one length, and these differ")
    decode = DecodeStep(workload.model.network, batch_size, workload.longest, one_rule(workload))
    step: Step = decode
    if workload.model.device.type == "cuda":
        step = torch.compile(decode, mode="reduce-overhead", fullgraph=True, dynamic=False)
    return partial(run_compiled, workload, decode, step)


@torch.no_grad()
def run_compiled(workload: Workload, decode: DecodeStep, step: Step) -> PeerRun:
    """Serve the workload batch after batch, timed from ids to ids. step: `decode`, compiled or not."""
    prompts, device = workload.prompt_ids(), workload.model.device
    batch_size, num_tokens = decode.caches[0].keys.shape[0], workload.max_new_tokens[0]
    first_tokens, token_ids = None, []
    started = time.perf_counter()
    for i in range(0, len(prompts), batch_size):
        ids = decode.prefill(torch.tensor([list(p) for p in prompts[i : i + batch_size]], device=device))
        if first_tokens is None:
            synchronize(device)
            first_tokens = time.perf_counter()
        made = [ids]
        position = torch.tensor([len(prompts[i])], device=device)
        for _ in range(num_tokens - 1):
            made.append(step(made[-1], position).clone())  # a graph writes its next result where its last was
            position += 1
        token_ids += [tuple(row) for row in torch.stack(made, dim=1).tolist()]
    ended = time.perf_counter()
    return PeerRun(ended - started, first_tokens - started, tuple(token_ids))
