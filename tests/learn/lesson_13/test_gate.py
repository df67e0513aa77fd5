"""Lesson 13's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

PACK, SHARE, SHARES = range(3)
EACH = "        for left in num_left:\n            counts.append(min(left, max_tokens - sum(counts)))"
BACKWARDS = EACH.replace("in num_left", "in num_left[::-1]") + "\n        counts.reverse()"
FUNCTION = "batching=lambda *given: MyRows(*given)"
COUNTS = "[max(1, -(-n // size)) for n in pieces]"
IN_PROPORTION = "[max(1, at_once * n // max(1, sum(pieces))) for n in pieces]"
MISTAKES = [
    (PACK, "ids[first : first + count]", "ids[:count]", "prompts of [5] tokens, of which [3] are computed"),
    (PACK, "starts.append(len(token_ids))", "starts.append(len(token_ids) - 1)", "make that many rows of"),
    (PACK, "batching=MyRows", FUNCTION, ""),
    (SHARE, EACH, BACKWARDS, "`share_out` gave [0, 3, 4]: the oldest prompt gets all that it has left"),
    (SHARE, "min(left, max_tokens - sum(counts))", "max_tokens - sum(counts)", "`share_out` returned [16]."),
    (SHARE, "sum(counts)", "sum(num_left[: len(counts)])", "`share_out` returned [5, 2, -1]."),
    (SHARES, f"return {COUNTS}", "return [max(1, n) for n in pieces]", "all shares run at once"),
    (SHARES, f"return {COUNTS}", f"return {IN_PROPORTION}", "expected [1, 1"),
    (SHARES, f"return {COUNTS}", "return [-(-n // size) for n in pieces]", "also one without tokens"),
    (SHARES, f"return {COUNTS}", f"return __import__('torch').tensor({COUNTS})", ""),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "13_ragged_batches.ipynb", MISTAKES
)
