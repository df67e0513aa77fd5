"""Lesson 05's figures of a recorded run: throughput, and who waited where."""

from made_records import run_of

from labkit.learn.lesson_05 import latency


def test_the_figures_of_a_recorded_run():
    run = run_of(
        1.0,
        2.0,
        decoded_tokens=27,
        append_paths={"in_place": 20, "boundary": 7},
        new_tokens=(4, 4, 22),
        gaps_us=[5000] * 9,
        tpot=(0.001,) * 3,
        ttft=(0.1, 0.3, 0.2),
        queue_wait=(0.0, 0.2, 0.1),
    )
    assert latency.run_figures(run) == {"throughput": 15, "TPOT p99": 1, "ITL p99": 5}
    assert list(latency.queue_figures(run).values()) == [200, 100, 1, 100, 2.7, "in_place, boundary"]
