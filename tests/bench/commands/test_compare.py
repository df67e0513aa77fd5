"""`compare`: two rungs, a verdict, and the instrument tested on itself."""

import re
from types import SimpleNamespace

import pytest
from bench_commands import SMALL, bench

from labkit import LADDER
from labkit.bench import __main__ as bench_main

pytestmark = pytest.mark.slow


def test_compare_is_about_the_last_rung_and_the_one_below_it():
    args = bench_main.make_parser().parse_args(["compare"])
    assert (args.before, args.after) == tuple(LADDER)[-2:]


def test_compare_prints_a_verdict_and_warns_of_a_path_that_never_ran(recorded, capsys):
    line = f"compare {SMALL} --max-new-tokens 4 --no-stop-on-eos --rounds 1"
    (sample,) = recorded(f"{line} --before 00 --after 00,attention=plain --path copy_on_write")["samples"]
    printed = capsys.readouterr().out
    assert re.search(r"00 -> 00,attention=plain: x\d+\.\d+ \[.*\], too few rounds for a verdict", printed)
    assert "WARNING: path 'copy_on_write' never ran" in printed
    assert re.search(r"Limit of decode: .* s at .* GB/s \(reading alone .*\); reached \d+\.\d %", printed)
    assert len(sample["comparison"]["before_samples"]) == 2 and sample["limit_seconds"] > 0


@pytest.mark.parametrize(("flag", "expected"), [("", 1.0), ("--whole-runs", 3.0)])
def test_decoding_alone_is_compared_or_whole_runs(monkeypatch, flag, expected):
    class Asked(Exception):
        pass

    def asked(*args, measure, **kwargs):
        assert measure(SimpleNamespace(seconds=3.0, decode_seconds=1.0)) == expected
        raise Asked

    monkeypatch.setattr("labkit.bench.commands.compare.compare", asked)
    with pytest.raises(Asked):
        bench(monkeypatch, f"compare {SMALL} --max-new-tokens 3 {flag}")


def test_the_instrument_can_be_tested_on_itself(monkeypatch, capsys):
    line = f"compare {SMALL} --max-new-tokens 3 --no-stop-on-eos --self-test 2"
    bench(monkeypatch, f"{line} --rounds 1")
    too_few = "A/A self-test, 2 comparisons: 2 'too few rounds for a verdict (2 needed)'"
    assert capsys.readouterr().out.splitlines()[-1] == too_few
    bench(monkeypatch, f"{line} --rounds 2")
    last = capsys.readouterr().out.splitlines()[-1]
    verdicts = re.findall(r"(\d) '(cannot tell|faster|slower)'", last)
    assert last.startswith("A/A self-test, 2 comparisons: ") and sum(int(n) for n, _ in verdicts) == 2
