"""Lesson 12's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests
from skeletons import steps_of

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "12_sampling_without_sorts.ipynb"
STEPS = steps_of(NOTEBOOK)
DRAW, TOP_K, TOP_P = range(3)
COUNT = "    state.draws[slot_mapping] = draws + 1"
LIMITS = "    limits = V - top_ks.masked_fill(top_ks == 0, V).clamp(max=V)"
KEPT = "    return scores.masked_fill(keys < cuts[:, None], -torch.inf)"
BY_TOPK = f"""    kth = scores.topk(V).values.gather(1, V - 1 - limits[:, None])
{KEPT.replace("keys < cuts[:, None]", "scores < kth")}"""
KEYS = "keys, V = ordered(scores), scores.shape[-1]"
BY_RANK = "V = scores.shape[-1]\n    keys = ordered(scores) * V + torch.arange(V)"
FEWER = STEPS[TOP_K].solved.partition("def my_top_k")[0].replace("49", "32") + "def my_top_p"
MISTAKES = [
    (DRAW, "(temperatures > 0) & ", "", "row 2 of 24 is token 4, expected 0."),
    (DRAW, "draws)[:, None]", "draws)[:1, None]", "its random number is"),
    (DRAW, " & (token_ids >= 0)", "", "a row without finite logits has no token"),
    (DRAW, "draws + 1", "draws + 2", "other moves and this"),
    (DRAW, COUNT, f"{COUNT}\n    logits[temperatures > 0].sum()", "the sampler asked for `index`"),
    (DRAW, "scaled(logits, temperatures)", "logits.copy_(scaled(logits, temperatures))", "are only read"),
    (TOP_K, LIMITS, f"{LIMITS}\n    limits = (limits - 1).clamp(min=0)", "top-k keeps the k of largest"),
    (TOP_K, "keys < cuts[:, None]", "keys < cuts[:, None] - 1", "top-k keeps the k of largest"),
    (TOP_K, KEYS, BY_RANK, "a tie with the k-th is kept"),
    (TOP_K, KEPT, BY_TOPK, "the sampler asked for `topk`"),
    (TOP_P, "def my_top_p", FEWER, "multiply the score's key by V"),
    (TOP_P, "keys >= cuts", "keys > cuts", "the token that crosses p is kept"),
    (TOP_P, " * V + torch.arange(V, device=scores.device)", "", "and of equal ones the lower id"),
    (TOP_P, "ordered(scores) * V", "ordered(scores)", "the less likely token goes first"),
    (TOP_P, "(1 - top_ps).float()", "1 - top_ps", "a sum that is 1 - p itself may go"),
    (TOP_P, ".softmax(dim=-1).double()", ".softmax(dim=-1)", "a sum that is 1 - p itself may go"),
    (TOP_P, " | (top_ps == 1)[:, None]", "", ""),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)
