"""All orders in which streams may run."""

from labkit.learn.lesson_10.streams import Access, orders, what_is_read


def test_one_stream_has_one_order_and_two_have_some_that_are_wrong():
    old, new = [Access("A", "writes")], [Access("B", "writes"), Access("B", "reads")]
    assert what_is_read([[*old, *new]]) == {"B reads B's number": 1}
    assert what_is_read([old, new]) == {"B reads B's number": 2, "B reads A's number": 1}
    assert len(list(orders([old * 2, new * 2]))) == 15  # 6 over 2
