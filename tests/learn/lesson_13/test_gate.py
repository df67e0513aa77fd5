"""Lesson 13's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

PACK, SHARE, SHARES = range(3)
HEAD = "    def pack"
NO_CONTEXT = f"""    def __init__(self, *given):
        super().__init__(*given)
        self.context_lens = [0] * len(self.context_lens)

{HEAD}"""
RETURN = "        return token_ids, positions, starts"
LATE = f"""        MyRows.chunks = getattr(MyRows, "chunks", 0) + 1
        if MyRows.chunks > 60:
            positions = [0] * len(positions)
{RETURN}"""
EACH = "        for left in num_left:\n            counts.append(min(left, max_tokens - sum(counts)))"
BACKWARDS = EACH.replace("in num_left", "in num_left[::-1]") + "\n        counts.reverse()"
FUNCTION = "batching=lambda *given: MyRows(*given)"
ONE_EACH = """batching=lambda prompts, done, room: __import__("labkit").engine.packed_chunk.PackedChunk(
    [ids[: n + 1] for ids, n in zip(prompts, done)], done, room)"""
COUNTS = "[max(1, -(-n // size)) for n in pieces]"
IN_PROPORTION = "[max(1, at_once * n // max(1, sum(pieces))) for n in pieces]"
MISTAKES = [
    (PACK, "ids[first : first + count]", "ids[:count]", "prompts of [5] tokens, of which [3] are computed"),
    (PACK, "starts.append(len(token_ids))", "starts.append(len(token_ids) - 1)", "make that many rows of"),
    (PACK, HEAD, NO_CONTEXT, "a prompt's context is what was computed of it before"),
    (PACK, RETURN, f"        num_computed[0] += 1\n{RETURN}", "it changed its argument num_computed to [1]"),
    (PACK, RETURN, LATE, "other moves and this"),
    (PACK, "starts.append(len(token_ids))", "starts.append(starts[-1] + len(ids))", "make that many rows of"),
    (PACK, "zip(prompts, num", "zip(prompts[:3], num", "of which [17, 1, 14, 5, 2] are computed"),
    (PACK, "batching=MyRows", ONE_EACH, "A chunk leaves no room unused while a prompt has tokens left"),
    (PACK, "batching=MyRows", FUNCTION, ""),
    (SHARE, EACH, BACKWARDS, "`share_out` gave [0, 3, 4]: the oldest prompt gets all that it has left"),
    (SHARE, "min(left, max_tokens - sum(counts))", "max_tokens - sum(counts)", "returned [16], and prompt 0"),
    (SHARE, "sum(counts)", "sum(num_left[: len(counts)])", "`share_out` returned [5, 2, -1], expected a"),
    (SHARE, "min(left,", "min(left, 16 - sum(counts),", "and room for 68, prompt 1 has 14, expected 16"),
    (SHARES, f"return {COUNTS}", "return [max(1, n) for n in pieces]", "all shares run at once"),
    (SHARES, f"return {COUNTS}", f"return {IN_PROPORTION}", "no share is cut smaller than the largest"),
    (SHARES, f"return {COUNTS}", "return [-(-n // size) for n in pieces]", "also one without tokens"),
    (SHARES, f"return {COUNTS}", f"return [min(16, count) for count in {COUNTS}]", "with requests of [40,"),
    (SHARES, f"return {COUNTS}", f"return __import__('torch').tensor({COUNTS})", ""),
    (SHARES, "at_once:", "at_once and size < 64:", "all shares run at once found with requests of [1300"),
    (SHARES, "    size = 1", "    pieces.sort()\n    size = 1", "changed its argument"),
    (SHARES, "    size = 1", "    size = 1\n    while size == 1:\n        pass", "the search has no end"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "13_ragged_batches.ipynb", MISTAKES
)
