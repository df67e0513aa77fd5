"""Attention in pieces: programs, shares, times."""

from labkit import show


def test_attention_times_name_the_kernels():
    sample = {"batch_size": 8, "num_bytes": 100, "copy_bytes_per_second": 1e8}
    samples = [
        {**sample, "kernel": kernel, "context_len": length, "us": us}
        for kernel, us in (("one_program", 4.0), ("split", 2.0))
        for length in (100, 900)
    ]
    figure = show.draw_attention_times(samples)
    assert [line.get_ydata()[0] for line in figure.axes[0].lines] == [4.0, 2.0]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["B = 8, one program", "B = 8, split"]
