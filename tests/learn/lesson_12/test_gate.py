"""Lesson 12's gate: samplers that sort nothing pass, and wrong ones are refused by what they break."""

from functools import partial

import pytest
import torch

from labkit import lab
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.distribution import pick, scaled, uniform_numbers
from labkit.kernels.float_keys import ordered
from labkit.kernels.sampling import crossing, kept_by_top_k, kept_by_top_p
from labkit.learn import not_attempted
from labkit.learn.lesson_12.cost import draw_sorted
from labkit.learn.lesson_12.traps import draws_by_row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("12")


def draw(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered, *wrong):
    """A right sampler with some things wrong."""
    temperatures, top_ks, top_ps, _, seeds, draws = state.at(slot_mapping)
    scores = logits if "scores into logits" in wrong else torch.empty_like(logits)
    scores.copy_(logits if "temperature last" in wrong else scaled(logits, temperatures))
    if is_filtered or "always searches" in wrong:
        stages = [(top_k_kept, top_ks), (top_p_kept, top_ps)]
        for kept, parameters in reversed(stages) if "top-p first" in wrong else stages:
            scores = scores.masked_fill(~kept(scores, parameters, wrong), -torch.inf)
    if "temperature last" in wrong:
        scores = scaled(scores, temperatures)
    numbers = uniform_numbers(seeds, draws)
    if "one number for all" in wrong:
        numbers = numbers[:1].expand(len(numbers))
    is_drawn = temperatures > (-1 if "all draw" in wrong else 0)
    if "rows without a token draw" not in wrong:
        is_drawn &= token_ids >= 0
    token_ids.copy_(torch.where(is_drawn, pick(scores.softmax(dim=-1), numbers), token_ids))
    if "last tokens by row" in wrong:
        last_token_ids[: len(token_ids)] = token_ids.clamp(min=0)
    else:
        last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    if "counts drawing rows alone" in wrong:
        state.draws[slot_mapping] = draws + (temperatures > 0)
    else:
        state.draws[slot_mapping] = draws + (2 if "counts twice" in wrong else 1)
    if "picks rows by a mask" in wrong:
        logits[temperatures > 0].sum()


def crossing_after(num_halvings, keys, weights, limits):
    """The lesson's own search."""
    below, high = keys.amin(dim=-1) - 1, keys.amax(dim=-1)
    for _ in range(num_halvings):
        middle = below + (high - below) // 2
        is_above = torch.where(keys <= middle[:, None], weights, 0).sum(dim=-1).float() > limits
        below, high = torch.where(is_above, below, middle), torch.where(is_above, middle, high)
    return high


def top_k_kept(scores, top_ks, wrong):
    V = scores.shape[-1]
    limits = V - top_ks.masked_fill(top_ks == 0, V).clamp(max=V)
    if "one too many" in wrong:
        limits = (limits - 1).clamp(min=0)
    keys = ordered(scores)
    if "ties by rank" in wrong:
        keys = keys * V + torch.arange(V)
    if "by topk" in wrong:
        kth = scores.topk(V).values.gather(1, V - 1 - limits[:, None])
        return scores >= kth
    if "sorts on the host" in wrong:
        cuts = [sorted(row)[limit] for row, limit in zip(keys.tolist(), limits.tolist(), strict=True)]
        return keys >= torch.tensor(cuts)[:, None]
    if "compares all with all" in wrong:
        return (scores[:, :, None] > scores[:, None, :]).sum(1) < V - limits[:, None]
    cuts = crossing(keys, torch.ones_like(scores).double(), limits)[:, None]
    return keys >= cuts - int("one key too low" in wrong)


def top_p_kept(scores, top_ps, wrong):
    V = scores.shape[-1]
    keys = ordered(scores) * V + torch.arange(V)
    if "ties stay together" in wrong:
        keys = ordered(scores)
    if "ids are added to keys" in wrong:
        keys = ordered(scores) + torch.arange(V)
    weights, limits = scores.softmax(dim=-1).double(), (1 - top_ps).float()
    if "1 - p is not rounded" in wrong:
        limits = 1 - top_ps
    if "sums in float32" in wrong:
        weights = scores.softmax(dim=-1)
    search = partial(crossing_after, 40) if "40 halvings" in wrong else crossing
    cuts = search(keys, weights, limits)[:, None]
    kept = keys > cuts if "the crossing token goes" in wrong else keys >= cuts
    return kept if "top-p of 1 is searched" in wrong else kept | (top_ps == 1)[:, None]


def wrongly(*what):
    def sampler(*batch):
        return draw(*batch, *what)

    return sampler


WRONG = {
    "all draw": "a row that does not draw keeps its token: row 2 of 24 is token 4, expected 0.",
    "one number for all": "its random number is",
    "rows without a token draw": "a row without finite logits has no token",
    "last tokens by row": "a slot's last token is its row's: last_token_ids[0], of no row of the batch, is",
    "counts twice": "a step counts one random number per row that draws: draws[",
    "scores into logits": "logits are only read",
    "one too many": "top-k keeps the k of largest score",
    "one key too low": "a score just below the cut is dropped: row 0 of 24 is token 0, expected 1.",
    "ties by rank": "a tie with the k-th is kept",
    "the crossing token goes": "the token that crosses p is kept",
    "ties stay together": "of equal tokens at the cut those of lower id go first",
    "ids are added to keys": "of two unequal tokens the less likely goes first, whatever their ids: row",
    "1 - p is not rounded": "a sum that is 1 - p itself may go: row 0 of 24 is token 0, expected 1.",
    "sums in float32": "a sum that is 1 - p itself may go: row",
    "40 halvings": "a search goes on until one key is left: row 0 of 12 is token",
    "temperature last": "top-p counts at the row's temperature: row",
    "sorts on the host": "the host reads nothing: the sampler asked for `tolist`, for which the host waits",
    "compares all with all": "a token is not compared with every other: for 2,400 logits one operator",
    "top-p first": "top-p is of what top-k has left",
    "by topk": "nothing is sorted: the sampler asked for `topk` (1 times in a filtered batch)",
    "picks rows by a mask": "the host reads nothing: the sampler asked for `index`",
    "always searches": "without a filter nothing is searched for: a batch in which rows only",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_sampler_is_refused_by_what_it_breaks(here, what):
    report = here.check(sampler=wrongly(what))
    assert not report.ok and WRONG[what] in report.text, report.text
    assert report.text.startswith("sampler breaks a contract: ")


def row_by_row(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered):
    """The package's cuts, and tokens by a loop over rows whose number the host knows."""
    of_rows = SamplingState(*(column[slot_mapping] for column in state))
    scores = scaled(logits, of_rows.temperatures)
    if is_filtered:
        scores = torch.where(kept_by_top_k(scores, of_rows.top_ks), scores, -torch.inf)
        scores = torch.where(kept_by_top_p(scores, of_rows.top_ps), scores, -torch.inf)
    numbers = uniform_numbers(of_rows.seeds, of_rows.draws)
    for row, cumulated in enumerate(scores.softmax(dim=-1).double().cumsum(dim=-1).unbind()):
        drawn = (cumulated <= numbers[row] * cumulated[-1]).sum()
        draws = (of_rows.temperatures[row] > 0) & (token_ids[row] >= 0)
        token_ids[row] = torch.where(draws, drawn, token_ids[row])
    last_token_ids.index_copy_(0, slot_mapping, token_ids.clamp(min=0))
    state.draws.index_add_(0, slot_mapping, torch.ones_like(slot_mapping))


RIGHT = {
    "counts drawing rows alone": wrongly("counts drawing rows alone"),
    "top-p of 1 is searched": wrongly("top-p of 1 is searched"),
    "row by row, out of place": row_by_row,
}


@pytest.mark.parametrize("sampler", RIGHT.values(), ids=RIGHT)
def test_right_samplers_pass_in_any_clothes(here, sampler):
    report = here.check(sampler=sampler)
    assert report.ok, report.text
    proof = "3 random schedules, the rung below's text and transformers'."
    assert report.text == f"sampler: right. {proof}"


def test_the_rung_below_is_refused_for_its_sorts_alone(here):
    assert here.check(sampler=draw_sorted).text.startswith("sampler breaks a contract: nothing is sorted")


def test_the_notebook_s_trap_and_what_raises_or_is_not_there(here):
    assert not here.check(sampler=draws_by_row).ok
    assert here.check(sampler=lambda *batch: not_attempted()).text == "sampler: not attempted yet."
    assert "raised TypeError" in here.check(sampler=lambda: None).text


def a_stale_number(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered):
    """Right in every single call, and wrong when a request comes back: keeps its own count of calls."""
    draw_plain(logits, token_ids, slot_mapping, last_token_ids, state, is_filtered)
    seen.append(len(logits))
    if len(seen) > 60:
        token_ids.copy_(torch.where(state.temperatures[slot_mapping] > 0, 0, token_ids))


seen: list[int] = []


def test_what_only_a_schedule_finds_is_told_with_its_moves(here):
    seen.clear()
    text = here.check(sampler=a_stale_number).text
    assert "tokens: new token" in text and "other moves and this" in text
