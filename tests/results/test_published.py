"""The published figures are those of the write-ups, and what they say about their own noise."""

import numpy as np
import pytest

from labkit.bench.__main__ import make_parser
from labkit.results.published import headline, noise_floor, published_figures, series_drift


@pytest.fixture(scope="module")
def figures():
    return published_figures()


def one(figures, write_up, metric, statistic=None):
    rows = figures[(figures["write_up"] == write_up) & (figures["metric"] == metric)]
    rows = rows if statistic is None else rows[rows["statistic"] == statistic]
    assert len(rows) == 1
    return rows.iloc[0]


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


@pytest.mark.parametrize(
    ("write_up", "metric", "gain"),
    [("038", "decode throughput", 2.31), ("062", "throughput", 1.0152), ("064", "throughput", 1.0262)],
)
def test_ratios_are_the_ones_the_write_ups_state(figures, write_up, metric, gain):
    row = one(figures, write_up, metric, "mean")
    assert round(row["ratio"], len(str(gain)) - 2) == gain


def test_a_ratio_above_1_is_better_also_where_less_is(figures):
    tpot = one(figures, "038", "TPOT", "mean")
    assert tpot["ratio"] == pytest.approx(14.98 / 6.50) and not tpot["higher_is_better"]
    assert one(figures, "036", "TTFT", "mean")["ratio"] == pytest.approx(2.64 / 2.71)  # it got worse
    assert round(100 * (1 - 1 / tpot["ratio"]), 1) == 56.6  # -56.6 %, says the write-up
    p99 = [one(figures, "064", metric)["ratio"] for metric in ("TPOT p99", "ITL p99")]
    # -2.62 % and -5.36 %, says the write-up, of averages not yet rounded.
    np.testing.assert_allclose([100 * (1 - 1 / ratio) for ratio in p99], [2.62, 5.36], atol=0.01)


def test_a_rung_without_a_write_up_has_no_headline():
    with pytest.raises(ValueError, match=r"nothing was published about rung '08'; .* 01, 02, 03, 04, 05"):
        headline("08")


def test_drift_between_neighbouring_posts(figures):
    drift = series_drift(figures)
    pairs = list(zip(drift["after_of"], drift["before_of"], strict=True))
    # Not 038 and 040, for 039 lies between; not 061 and 062, for the command of 061 is not known.
    assert pairs == [("036", "037"), ("037", "038"), ("040", "041")]
    assert drift["after"].tolist() == [4295.69, 4406.26, 10564]
    assert drift["before"].tolist() == [4337.51, 4289.33, 10621]
    np.testing.assert_allclose(100 * drift["drift"], [0.97, -2.65, 0.54], atol=0.005)


def test_drift_is_computed_from_the_figures(figures):
    only_036_and_037 = figures[figures["write_up"].isin(["036", "037"])].copy()
    only_036_and_037.loc[only_036_and_037["write_up"] == "037", "before"] = 2 * 4295.69
    assert noise_floor(only_036_and_037) == 1.0


@pytest.mark.parametrize("commands", [("scheduler", "scheduler --cuda-graph"), (None, None)])
def test_posts_are_compared_only_where_their_commands_are_known_and_the_same(figures, commands):
    pair = figures[figures["write_up"].isin(["036", "037"])].copy()
    pair["command"] = pair["write_up"].map(dict(zip(("036", "037"), commands, strict=True)))
    assert series_drift(pair).empty
