"""The published figures are those of the write-ups, and what they say about their own noise."""

import numpy as np
import pytest

from labkit.bench.__main__ import make_parser
from labkit.results.published import headline, published_figures, series_drift


@pytest.fixture(scope="module")
def figures():
    return published_figures()


def test_averages_are_those_of_their_runs_and_rungs_are_named_both_or_neither(figures):
    assert figures["write_up"].str.isdecimal().all()
    assert (figures["rung_before"].isna() == figures["rung_after"].isna()).all()
    for side in ("before", "after"):
        for average, runs in figures[[side, f"{side}_runs"]].dropna().itertuples(index=False):
            assert average == pytest.approx(np.mean(runs), abs=0.0051) and min(runs) > 0


def test_commands_that_are_known_are_understood_here(figures):
    assert len(figures) == 41
    commands = figures["command"].dropna().unique()
    assert len(commands) == 3
    for command in commands:
        args = make_parser().parse_args(command.split())
        assert args.num_requests in (64, 128) and args.max_new_tokens in (512, 128)
        assert args.no_stop_on_eos and args.no_prefix_cache and args.pretok
        assert (args.warmup_runs, args.repeat_runs) == (1, 3)


def test_a_rung_without_a_write_up_has_no_headline():
    with pytest.raises(ValueError, match=r"nothing was published about rung '08'; .* 01, 02, 03, 04, 05"):
        headline("08")


def test_drift_is_computed_from_the_figures(figures):
    only_036_and_037 = figures[figures["write_up"].isin(["036", "037"])].copy()
    only_036_and_037.loc[only_036_and_037["write_up"] == "037", "before"] = 2 * 4295.69
    assert series_drift(only_036_and_037)["drift"].abs().max() == 1.0


@pytest.mark.parametrize("commands", [("scheduler", "scheduler --cuda-graph"), (None, None)])
def test_posts_are_compared_only_where_their_commands_are_known_and_the_same(figures, commands):
    pair = figures[figures["write_up"].isin(["036", "037"])].copy()
    pair["command"] = pair["write_up"].map(dict(zip(("036", "037"), commands, strict=True)))
    assert series_drift(pair).empty
