"""`attention`: every batch size with every context."""

from labkit.bench.attention_time import AttentionTime
from labkit.bench.commands.attention import attention_table


def test_the_table_holds_each_kernels_rate_against_a_copys():
    times = [
        AttentionTime(kernel, 8, 900, splits, (us * 1e-6,) * 3, num_bytes=2000)
        for kernel, splits, us in (("one_program", 1, 4.0), ("split", 8, 2.0))
    ]
    table = attention_table(times, bandwidth=4e9)
    assert table.loc[(8, 900, "one_program")].tolist() == [1, 4.0, 12.5]
    assert table.loc[(8, 900, "split")].tolist() == [8, 2.0, 25.0]
