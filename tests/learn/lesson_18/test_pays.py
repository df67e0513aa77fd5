"""What lesson 18 says on paper, and that it draws whatever records there are."""

import matplotlib.pyplot as plt
from made_records import record_of

from labkit.learn.lesson_18 import pays
from labkit.results.ranks import CUT, CUT_NCCL, ONE, RanksRun


def test_records_are_drawn_whatever_they_are(monkeypatch, capsys):
    kernels = {"_residual_sum_of_peers_kernel": 320.0}
    runs = [
        RanksRun(side, n, t, 10 * n, kernels if side == CUT else {})
        for n in (1, 32)
        for side, t in ((ONE, 1.0), (CUT, 0.6), (CUT_NCCL, 0.7))
        for _ in range(4)
    ]
    settings = {"ranks": 2, "prompt_tokens": 32, "max_new_tokens": 11, "rung": "14"}
    records = {"a": record_of("ranks", runs, model="random:llama-3.1-8b", **settings)}
    monkeypatch.setattr(pays, "load_all", lambda kind: records)
    gains = pays.measured()
    table = pays.measured_table(gains)
    assert list(table["requests"]) == ["1", "32"]
    assert table["a sum (µs)"].iloc[0] == f"{4 * 320 / 64:.1f}"  # of each of four profiled runs
    pays.draw_measured(gains)
    assert [axes.get_title("left") for axes in plt.gcf().axes] == ["llama-3.1-8b"]
    plt.close("all")
    records.clear()
    pays.draw_measured(pays.measured())
    assert "There is no record yet" in capsys.readouterr().out and pays.measured_table([]) is None
