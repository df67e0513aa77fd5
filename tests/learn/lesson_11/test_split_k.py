"""Two launches of a split-K product at once: in one workspace they count each other's parts."""

from math import factorial

from labkit.learn.lesson_11.split_k import RIGHT, Outcome, orders, outcomes, told

NUM_ORDERS = factorial(8) // 2**4


def test_every_order_of_the_programs_is_played_once():
    made = [tuple(order) for order in orders([2, 2, 2, 2])]
    assert len(made) == len(set(made)) == NUM_ORDERS
    assert all(sorted(order) == [0, 0, 1, 1, 2, 2, 3, 3] for order in made)


def test_with_a_workspace_each_every_order_is_right():
    assert outcomes(2) == {Outcome(*RIGHT): NUM_ORDERS}
    assert told(2) == "2,520 of 2,520 orders right"


def test_with_one_workspace_few_orders_are():
    found = outcomes(1)
    assert sum(found.values()) == NUM_ORDERS
    # One launch before the other, or so interleaved that it makes no difference.
    assert found[Outcome(*RIGHT)] == 72
    assert found[Outcome(None, 30)] and found[Outcome(3, None)]  # nobody took itself for the last
    assert told(1) == "72 of 2,520 orders right; 240 make 30 and 30, not 3 and 30"
