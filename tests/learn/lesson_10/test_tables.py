"""Tables of recorded runs."""

from made_records import card_of, card_record, run_of, runs_record

from labkit.learn.lesson_10.tables import (
    card_differences,
    first_token_table,
    slow_gaps,
    streaming_table,
)
from labkit.results.comparison import MIN_ROUNDS


def test_the_streaming_table_has_the_median_of_the_runs():
    def run(seconds: float, *gaps: int):
        return "10", run_of(seconds=seconds, new_tokens=(50, 50), gaps_us=gaps * 2)

    record = runs_record([run(1.0, *[1000] * 98, 3000, 3000), run(2.0, 2000), run(4.0, 4000)])
    (row,) = streaming_table({"a": record}).to_dict("records")
    assert row == {"tokens/s": "50", "ITL p50 (ms)": 2.0, "ITL p99 (ms)": 3.0, "p99 / p50": 1.0, "runs": 3}


def test_slow_gaps_are_those_of_more_than_twice_the_median():
    gaps = [1000, 1000, 2001, 1000] * 2 + [1000, 2000, 4000, 1000]
    record = runs_record([("10", run_of(new_tokens=(5, 5, 5), gaps_us=gaps))])
    (row,) = slow_gaps(record).reset_index().to_dict("records")
    assert row == {
        "run": 1,
        "before token": "4 of 5",
        "streams": 3,
        "pause, median (ms)": 2.0,
        "median gap (ms)": 1.0,
    }


def test_first_tokens_are_compared():
    runs = [("09", run_of(ttft=(0.1,) * 3)), ("10", run_of(ttft=(0.2,) * 3))]
    record = runs_record(runs * 2 * MIN_ROUNDS)
    table = first_token_table({"here": record}, "09", "10")
    (row,) = table.to_dict("records")
    assert list(row.values()) == [100, 200, "×0.500", "[0.500, 0.500]"]


def test_the_cards_that_both_rungs_have_are_compared():
    cards = [
        ("09", 1, "m", (3,), card_of(5)),
        ("09", 2, "m", (3, 3), card_of(5)),
        ("10", 1, "m", (3,), card_of(5)),
    ]
    assert card_differences(card_record(cards), "09", "10") == (1, {})
    cards += [("10", 2, "m", (3, 3), card_of(6)), ("08", 2, "m", (3, 3), card_of(9))]
    assert card_differences(card_record(cards), "09", "10") == (2, {"kernels": [(5, 6)]})
