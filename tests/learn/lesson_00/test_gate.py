"""Lesson 00's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

GATHER, WEIGHTS, _, AT_ONCE = range(4)
GATHERED = "    blocks = cache[row]\n    return blocks.transpose(0, 1).flatten(1, 2)[:, :num_tokens]"
BY_TOKEN = """    S = cache.shape[2]
    return torch.stack([cache[row[t // S], :, t % S] for t in range(num_tokens)], dim=1)"""
SOFTMAX = "    exps = (scores - scores.max()).exp()\n    return exps / exps.sum()"
MASKED = "masked_fill(hidden, -torch.inf).softmax(dim=-1)"
MISTAKES = [
    (GATHER, "cache[row]", "cache[torch.arange(len(row))]", "slot 0 of block 0, "),
    (GATHER, ":num_tokens]", ":num_tokens].transpose(0, 1)", "here [2, 6, 32]. It gave [6, 2, 32]."),
    (GATHER, GATHERED, BY_TOKEN, ""),
    (WEIGHTS, "(scores - scores.max())", "scores", "largest weight is nan"),
    (WEIGHTS, "keys @ query", "keys * query", "weights returns [T], here [7]. It gave [7, 32]."),
    (WEIGHTS, SOFTMAX, "    return scores.softmax(0)", ""),
    (AT_ONCE, "visible[:, -1] = True", "pass", "the new token of request 0 has weight 0"),
    (AT_ONCE, "columns < c", "columns <= c", "slot 2 of block 5, which holds no token, has weight 0."),
    (AT_ONCE, MASKED, "softmax(dim=-1).masked_fill(hidden, 0)", "they add up to"),
    (AT_ONCE, " * query.shape[2] ** -0.5", "", "the softmax of query · key / √D found request 0"),
    (AT_ONCE, "cache[block_table[:", "cache[block_table[:1].expand_as(block_table)[:", "token 0 of request"),
    (AT_ONCE, "values.masked_fill(hidden.transpose(2, 3), 0)", "values", "with NaN in the empty"),
    (AT_ONCE, "@ values", "@ keys", "values are added up, not keys"),
    (WEIGHTS, SOFTMAX, SOFTMAX.replace("scores.max", "scores.abs().max"), "largest weight is nan"),
    (WEIGHTS, SOFTMAX, "    return scores.double().softmax(0).float()", ""),
    (AT_ONCE, "-torch.inf", "torch.finfo(scores.dtype).min", ""),
    (AT_ONCE, "    def of", "    k_cache_layer[2, :, 0] = key_new[0]\n\n    def of", "its argument k_cache_"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "00_paged_engine.ipynb", MISTAKES
)
