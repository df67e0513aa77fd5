"""From logits to probabilities to a token, as Hugging Face defines temperature, top-k and top-p.

Tensors to tensors: which operators run does not depend on the numbers, so a CUDA graph can hold them.
"""

import torch
from torch import Tensor

FLOAT32 = torch.finfo(torch.float32)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token [B] int64 of each row [B, V], and whether [B] bool the row's maximum is finite."""
    best_logits, best_ids = logits.max(dim=-1)  # NaN and inf, if any, are the row's maximum
    return best_ids, best_logits.isfinite()


def warp(logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """The probabilities [B, V] float32 that tokens are drawn from: temperature, then top-k, then top-p.

    logits: [B, V].

    temperature: [B] float64, as Python holds it; 0, at which no token is drawn, counts as the smallest.
    top_k: [B] int64, 0 for a row without; None leaves the stage out for all rows.
    top_p: [B] float64, for 1 - top_p to be rounded once; 1 for a row without; None leaves the stage out for
        all rows.
    As in transformers, top-k keeps ties with the k-th token, and top-p keeps the token that crosses p.
    A row of logits with NaN or with an infinite maximum gives NaN, and changes no other row.
    """
    V = logits.shape[-1]
    # A shift changes no probability, and of a tiny temperature's quotients none is then +inf.
    scores = logits.float() - logits.amax(dim=-1, keepdim=True)
    # Dividing by less than the smallest may be dividing by 0, and by more than the largest by inf.
    scores /= temperature.double().clamp(FLOAT32.tiny, FLOAT32.max).float()[:, None]
    if top_k is not None:
        ranks = top_k.masked_fill(top_k == 0, V).clamp(max=V) - 1
        kth = scores.sort(dim=-1, descending=True).values.gather(1, ranks[:, None])
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if top_p is not None:
        ascending, order = scores.sort(dim=-1)
        tail = ascending.softmax(dim=-1).cumsum(dim=-1)
        dropped = tail <= (1 - top_p.double()).float()[:, None]
        dropped &= (top_p < 1)[:, None]
        dropped[:, -1] = False
        scores = scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
    return scores.softmax(dim=-1)


def pick(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token per row: the first whose cumulated probability passes the row's random number.

    probabilities: [B, V]. uniforms: [B] float64 in [0, 1). Returns ids [B]; a row of NaN gives V, which is no
    token.
    """
    cumulated = probabilities.double().cumsum(dim=-1)
    # right=True: the first token whose cumulated probability is above u, so never one of probability 0
    return torch.searchsorted(cumulated, (uniforms * cumulated[:, -1])[:, None], right=True)[:, 0]
