"""Lesson 17's gates: the hints' parts with one likely mistake each are refused, with its sentence."""

import pytest
import torch
from gate_tests import mistake_tests
from made_records import record_of

from labkit.engine.drafting import DraftBalance
from labkit.kernels import ngram_drafts_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_17 import engine, gate, worth
from labkit.paths import ROOT
from labkit.results import Comparison
from labkit.results.comparison import DialedRun

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "17_speculation.ipynb"
DRAFTS, ACCEPTED, TAKE_BACK, BALANCE = range(4)
START = "start = torch.where(is_match, place, 0).amax(dim=1)"
LATEST = "drafts are what follows the latest earlier place"
MISTAKES = [
    (DRAFTS, START, "start = is_match.long().argmax(dim=1)", LATEST),
    (DRAFTS, " & (two == second)", "", LATEST),
    (DRAFTS, " & (j < limits[:, None])", "", "with a limit of 3"),
    (DRAFTS, "(start[:, None] > 0) & ", "", LATEST),
    (DRAFTS, " & (place >= 2)", "", "has two tokens before it"),
    (DRAFTS, "(start[:, None] > 0) & ", "(start[:, None] < 0) & ", "`is_draft` must say what is one"),
    (DRAFTS, START,
     "start = torch.tensor([max([0, *row.nonzero()[:, 0]]) for row in is_match])", "read on the host"),
    (DRAFTS, START,
     "start = torch.zeros_like(lens)\n    for p in range(texts.shape[1]):\n"
     "        start = torch.where(is_match[:, p], p, start)", "whatever a text has"),
    (ACCEPTED, ".cumprod(dim=1)", "", "a text that does not exist"),
    (ACCEPTED, " & (drafts >= 0)", "", "-1 is no draft"),
    (ACCEPTED, "<= num_right", "< num_right", "the token after the last kept draft is kept, too"),
    (ACCEPTED, "made[:, :-1]", "made[:, 1:]", "[2, 2] are kept, expected [2, 2, 0]"),
    (ACCEPTED, "is_right.long().cumprod(dim=1).sum(dim=1)",
     "sum(is_right[:, : j + 1].all(dim=1).long() for j in range(drafts.shape[1]))", ""),
    (TAKE_BACK, "num_cached + num_made", "num_cached + num_made - 1", "has been in no row yet"),
    (TAKE_BACK, "-(-length // block_size)", "length // block_size + 1", "one that is full needs no other"),
    (TAKE_BACK, "-(-length // block_size)", "length // block_size", "with a token that stays is kept"),
    (BALANCE, "self.saved < 0.5", "self.saved < -9", "expected (1.0, 32, 19)"),
    (BALANCE, "self.pause *= 2", "pass", "expected (1.0, 32, "),
    (BALANCE, "num_tokens + self.pause", "self.pause", "the account holds what drafts brought and cost"),
    (BALANCE, "- 0.5, 4.0)", ", 4.0) - 0.5", "are (3.5, 16, 0), expected (4.0, 16, 0)"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)


def test_the_packages_parts_pass():
    assert gate.check_balance(DraftBalance).ok
    # Where three tokens foretell what two do, the package's drafts are these.
    for texts, lens, limits, num_drafts in gate.drawn_texts():
        slots = torch.arange(len(lens))
        made = ngram_drafts_plain(texts.int(), (lens - 1).int(), slots, limits, num_drafts)
        rows = zip(texts.tolist(), lens.tolist(), limits.tolist(), strict=True)
        assert (made >= 0).any(dim=1).tolist() == [bool(gate.lookup(*row)) for row in rows]


def test_an_acceptance_that_keeps_too_much_changes_the_engines_text_and_wrong_drafts_change_nothing():
    for accept in (gate.keeps_all_that_are_right, gate.keeps_every_draft):
        with pytest.raises(BrokenContract, match="the tokens are those without drafts: greedy"):
            engine.same_tokens(None, accept)
    with pytest.raises(BrokenContract, match="right drafts save steps"):
        engine.same_tokens(gate.nonsense)


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
