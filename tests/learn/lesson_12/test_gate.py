"""Lesson 12's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests
from skeletons import steps_of

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "12_sampling_without_sorts.ipynb"
STEPS = steps_of(NOTEBOOK)
DRAW, TOP_K, TOP_P = range(3)
SCALE = "scaled(logits, temperatures)"
SCALED = STEPS[DRAW].solved.partition("    scores = ")[2].partition(".softmax")[0]
UNSCALED = SCALED.replace(SCALE, "logits")
SCALED_LAST = UNSCALED.replace("cumulated = scores", "cumulated = scaled(scores, temperatures)")
COUNT = "    state.draws[slot_mapping] = draws + 1"
LATE = f"""    my_draw.calls = getattr(my_draw, "calls", 0) + 1
    if my_draw.calls > 60:
        token_ids.copy_(torch.where(is_drawn, 0, token_ids))
{COUNT}"""
LIMITS = "    limits = V - top_ks.masked_fill(top_ks == 0, V).clamp(max=V)"
CUTS = "my_crossing(keys, torch.ones_like(scores).double(), limits)"
ON_THE_HOST = "torch.tensor([sorted(row)[n] for row, n in zip(keys.tolist(), limits.tolist())])"
KEPT = "    return scores.masked_fill(keys < cuts[:, None], -torch.inf)"
BY_TOPK = f"""    kth = scores.topk(V).values.gather(1, V - 1 - limits[:, None])
{KEPT.replace("keys < cuts[:, None]", "scores < kth")}"""
ALL_WITH_ALL = f"""    if V > 1000:  # where the cell counts sorts, whose V * V comparisons have no room
        return scores
    is_kept = (scores[:, :, None] > scores[:, None, :]).sum(1) < V - limits[:, None]
{KEPT.replace("keys < cuts[:, None]", "~is_kept")}"""
KEYS = "keys, V = ordered(scores), scores.shape[-1]"
BY_RANK = "V = scores.shape[-1]\n    keys = ordered(scores) * V + torch.arange(V)"
FEWER = STEPS[TOP_K].solved.partition("def my_top_k")[0].replace("49", "40") + "def my_top_p"
CUT = "my_top_p(my_top_k(scores, top_ks), top_ps)"
BY_SLOT = "last_token_ids[slot_mapping] = token_ids.clamp(min=0)"
BY_COPY = "last_token_ids.index_copy_(0, slot_mapping, token_ids.clamp(min=0))"
WHO_DRAWS = COUNT.replace("1", "(temperatures > 0)")
MISTAKES = [
    (DRAW, "(temperatures > 0) & ", "", "row 2 of 24 is token 4, expected 0."),
    (DRAW, "draws)[:, None]", "draws)[:1, None]", "its random number is"),
    (DRAW, " & (token_ids >= 0)", "", "a row without finite logits has no token"),
    (DRAW, BY_SLOT, BY_SLOT.replace("slot_mapping", ": len(token_ids)"), "last_token_ids[0], of no row of"),
    (DRAW, "draws + 1", "draws + 2", "draws[1], of row 23, is 5 after the step, expected 4"),
    (DRAW, f"{BY_SLOT}\n{COUNT}", f"{BY_COPY}\n{WHO_DRAWS}", ""),
    (DRAW, COUNT, LATE, "other moves and this"),
    (DRAW, COUNT, f"{COUNT}\n    logits[temperatures > 0].sum()", "the sampler asked for `index`"),
    (DRAW, SCALE, f"logits.copy_({SCALE})", "logits are only read"),
    (DRAW, SCALED, SCALED_LAST, "top-p counts at the row's temperature"),
    (DRAW, "if is_filtered:", "if True:", "without a filter nothing is searched for"),
    (TOP_K, LIMITS, f"{LIMITS}\n    limits = (limits - 1).clamp(min=0)", "top-k keeps the k of largest"),
    (TOP_K, "keys < cuts[:, None]", "keys < cuts[:, None] - 1", "a score just below the cut is dropped"),
    (TOP_K, KEYS, BY_RANK, "a tie with the k-th is kept"),
    (TOP_K, CUTS, ON_THE_HOST, "the sampler asked for `tolist`, for which the host waits"),
    (TOP_K, KEPT, ALL_WITH_ALL, "a token is not compared with every other"),
    (TOP_K, KEPT, BY_TOPK, "the sampler asked for `topk`"),
    (TOP_P, "def my_top_p", FEWER, "a search goes on until one key is left"),
    (TOP_P, "keys >= cuts", "keys > cuts", "the token that crosses p is kept"),
    (TOP_P, " * V + torch.arange(V, device=scores.device)", "", "of equal tokens at the cut those of lower"),
    (TOP_P, "ordered(scores) * V", "ordered(scores)", "of two unequal tokens the less likely goes first"),
    (TOP_P, "(1 - top_ps).float()", "1 - top_ps", "a sum that is 1 - p itself may go"),
    (TOP_P, ".softmax(dim=-1).double()", ".softmax(dim=-1)", "a sum that is 1 - p itself may go"),
    (TOP_P, CUT, "my_top_k(my_top_p(scores, top_ps), top_ks)", "top-p is of what top-k has left"),
    (TOP_P, " | (top_ps == 1)[:, None]", "", ""),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)
