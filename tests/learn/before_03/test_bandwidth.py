"""Bandwidth by the number of programs, from the recorded attention."""

from labkit.learn.before_03.bandwidth import programs_table
from labkit.results import load


def test_a_row_per_batch_size_with_one_program_per_request_and_head():
    record = load("attention_h100")
    table = programs_table(record, context_len=900)
    assert table.index.tolist() == [12, 96, 768, 1536]
    (sample,) = [
        s for s in record.samples if (s.kernel, s.batch_size, s.context_len) == ("one_program", 1, 900)
    ]
    megabytes, us, share = table.loc[12]
    assert (megabytes, us) == (round(sample.num_bytes / 1e6, 1), round(sample.us, 1))
    assert share == round(100 * sample.num_bytes / (1e-6 * sample.us) / record.bandwidth, 1) < 5
    rates = table["% of a copy's rate"].tolist()
    assert rates[1] > 5 * rates[0] and rates[2] > 4 * rates[1]  # what the page says of the first rows
    assert abs(rates[3] - rates[2]) < 1  # and of the last two
    assert table["µs"].iloc[1] < 1.5 * us
