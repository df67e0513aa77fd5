"""Lesson 18's simulated replicas: what each order reuses, and whom it overruns."""

from statistics import median

from labkit.learn.lesson_18 import router
from labkit.serve.affinity import load_then_prefix


def test_the_packages_order_passes_and_the_others_do_not():
    report = router.check_order(load_then_prefix)
    assert report.ok and "reuses 95 %, and round robin 48 %" in report.text
    assert "load comes first" in router.check_order(router.prefix_alone).text
    assert "load comes first" in router.check_order(router.by_turns).text


def test_prefixes_are_reused_and_nobody_is_overrun():
    popular = router.LOADS["one of them popular"]
    turns, prefix, both = (
        router.run(popular, order) for order in (router.by_turns, router.prefix_alone, load_then_prefix)
    )
    assert turns.reused < both.reused <= prefix.reused
    assert both.longest < turns.longest < prefix.longest
    assert median(both.first_token) < median(turns.first_token) < median(prefix.first_token)


def test_where_nothing_is_shared_all_orders_are_one():
    alone = router.LOADS["nothing shared"]
    runs = [router.run(alone, order) for order in (router.by_turns, load_then_prefix)]
    assert [run.reused for run in runs] == [0, 0]
    assert [run.longest for run in runs] == [8, 8]
