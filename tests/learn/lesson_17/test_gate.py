"""Lesson 17's gates: the hints' parts with one likely mistake each are refused, with its sentence."""

import pytest
import torch
from gate_tests import mistake_tests
from made_records import record_of

from labkit.engine.drafting import DraftBalance
from labkit.kernels import ngram_drafts_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_17 import balance, engine, gate, traps, worth
from labkit.paths import ROOT
from labkit.results import Comparison
from labkit.results.drafts import DialedRun

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "17_speculation.ipynb"
DRAFTS, ACCEPTED, TAKE_BACK, BALANCE = range(4)
MATCH, START = "(place < lens[:, None])", "start = torch.where(is_match, place, 0).amax(dim=1)"
MISTAKES = [
    (DRAFTS, START, "start = is_match.long().argmax(dim=1)", "take the latest"),
    (DRAFTS, MATCH, "(place <= lens[:, None])", "is no earlier place"),
    (DRAFTS, " & (two == second)", "", "not only the last one"),
    (DRAFTS, "amax(dim=1)", "amax(dim=1).sub(1).clamp(min=0)", "which is one place further"),
    (DRAFTS, "amax(dim=1)", "amax(dim=1)\n    start = start + (start > 0)", "one place too far"),
    (DRAFTS, " & (sources < lens[:, None])", "", "What lies behind the end"),
    (DRAFTS, " & (j < limits[:, None])", "", "no more drafts than its limit"),
    (DRAFTS, "(start[:, None] > 0) & ", "", "A text without such a place has no drafts"),
    (DRAFTS, " & (place >= 2)", "", "A place needs two tokens before it"),
    (DRAFTS, "place >= 2", "place > 2", "Place 2 has two tokens before it, too"),
    (DRAFTS, "(one == last) & (two == second)", "(two == last) & (one == second)", "`two` its `second`"),
    (DRAFTS, "(start[:, None] > 0) & ", "(start[:, None] < 0) & ", "`is_draft` must say what is one"),
    (DRAFTS, START,
     "start = torch.tensor([max([0, *row.nonzero()[:, 0]]) for row in is_match])", "read on the host"),
    (DRAFTS, START,
     "start = torch.zeros_like(lens)\n    for p in range(texts.shape[1]):\n"
     "        start = torch.where(is_match[:, p], p, start)", "whatever a text has"),
    (DRAFTS, START, f"{START}\n    texts.numpy()", "read on the host"),
    (DRAFTS, START, f"{START}\n    lens -= 1\n    lens = lens + 1", ""),
    (DRAFTS, "torch.arange(num_drafts)", "torch.arange(4)", "int64 [3, 5] found it is int64 [3, 4]"),
    (DRAFTS, "limits[:", "limits.clamp(min=1)[:", "with a limit of 0"),
    (DRAFTS, "return drafts", "drafts", "it is None"),
    (DRAFTS, ".masked_fill(~is_draft, -1)", ".masked_fill(~is_draft, -1).int()", "it is int32"),
    (ACCEPTED, ".cumprod(dim=1)", "", "a text that does not exist"),
    (ACCEPTED, " & (drafts >= 0)", "", "-1 is no draft"),
    (ACCEPTED, "<= num_right", "< num_right", "the token after the last kept draft is kept, too"),
    (ACCEPTED, "made[:, :-1]", "made[:, 1:]", "[2, 2] are kept, expected [2, 2, 0]"),
    (ACCEPTED, "is_right.long().cumprod(dim=1).sum(dim=1)",
     "sum(is_right[:, : j + 1].all(dim=1).long() for j in range(drafts.shape[1]))", ""),
    (ACCEPTED, "return made.", "drafts.zero_()\n    return made.", ""),
    (ACCEPTED, "return made.", "made[:, :-1] = drafts\n    return made.", "replaced by what the model made"),
    (TAKE_BACK, "num_cached + num_made", "num_cached + num_made - 1", "has been in no row yet"),
    (TAKE_BACK, "-(-length // block_size)", "length // block_size + 1", "A block that is full"),
    (TAKE_BACK, "-(-length // block_size)", "length // block_size", "with a token that stays is kept"),
    (TAKE_BACK, "block_ids[:num_blocks]", "tuple(block_ids[:num_blocks])", ""),
    (TAKE_BACK, "block_ids[:num_blocks]", "num_blocks", "got (10, 5)"),
    (BALANCE, "self.saved < 0.5", "self.saved < -9", "stops drafting"),
    (BALANCE, "self.pause *= 2", "pass", "each pause is longer"),
    (BALANCE, "num_tokens + self.pause", "self.pause", "the account holds what drafts brought and cost"),
    (BALANCE, "self.saved < 0.5", "self.saved <= 0.5", "the account holds what drafts brought and cost"),
    (BALANCE, "- 0.5, 4.0)", ", 4.0) - 0.5", "are (3.5, 16, 0), expected (4.0, 16, 0)"),
    (BALANCE, "self.pause *= 2", "self.pause += 16", "expected (1.0, 64, 53)"),
    (BALANCE, "4.0", "6.0", "few bad ones"),
    (BALANCE, "if num_drafts == 0", "if num_drafts == 99", "a step without drafts costs nothing"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)


def test_the_packages_parts_pass():
    assert balance.check_balance(DraftBalance).ok
    # Where three tokens foretell what two do, the package's drafts are these.
    for texts, lens, limits, num_drafts in gate.drawn_texts():
        slots = torch.arange(len(lens))
        made = ngram_drafts_plain(texts.int(), (lens - 1).int(), slots, limits, num_drafts)
        rows = zip(texts.tolist(), lens.tolist(), limits.tolist(), strict=True)
        assert (made >= 0).any(dim=1).tolist() == [bool(gate.lookup(*row)) for row in rows]


def test_an_acceptance_that_keeps_too_much_changes_the_engines_text_and_wrong_drafts_change_nothing():
    for accept in (traps.keeps_all_that_are_right, traps.keeps_every_draft):
        with pytest.raises(BrokenContract, match="the tokens are those without drafts: greedy"):
            engine.same_tokens(None, accept)
    with pytest.raises(BrokenContract, match="right drafts save steps"):
        engine.same_tokens(traps.nonsense)


def test_drafts_that_cost_nothing_pay_whatever_their_chance():
    assert worth.break_even(1.0) == pytest.approx(0)


def test_a_recorded_dial_is_drawn_beside_paper():
    times = {0.0: (1.0, 1.0), 1.0: (1.0, 0.2)}
    runs = [
        DialedRun(
            1, chance, 81, 40 if chance else 320, 0, 0, Comparison("a", "b", (b,) * 4, (a,) * 4, {}, {})
        )
        for chance, (b, a) in times.items()
    ]
    record = record_of("drafts_dial", runs, model="small")
    assert worth.dial_curves(record)["measured"] == pytest.approx({0.0: 1, 1.0: 5})
    assert list(worth.dial_curves(record).values())[1] == pytest.approx({0.0: 1 / 1.6, 1.0: 5})
