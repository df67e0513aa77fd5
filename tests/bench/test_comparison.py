"""Engines compared: the order of runs, what a run is made with, the command, and parity with references."""

import re
from types import SimpleNamespace

import pytest
from bench_commands import SMALL, bench
from helpers import small_model

from labkit import LADDER, CacheConfig, EngineOptions, InferenceEngine
from labkit.bench import Workload, compare, in_turn, parity_table
from labkit.bench import __main__ as bench_main


def test_runs_go_there_and_back_again():
    order = []

    def measure(name):
        return lambda: order.append(name) or len(order)

    made = in_turn([measure("A"), measure("B")], rounds=2)
    assert "".join(order) == "ABBAABBA"
    assert made == [[1, 4, 5, 8], [2, 3, 6, 7]]
    order.clear()
    in_turn([measure(c) for c in "ABC"], rounds=1)
    assert "".join(order) == "ABCCBA"


def test_engines_are_compared_on_a_workload_with_their_paths_counted():
    model = small_model()
    workload = Workload.alike(
        model, ((1, 2, 3), (4, 5)), 9, device="cpu", cache=CacheConfig(4, prefix_cache=False)
    )
    options = LADDER["00"].options
    made = compare(
        workload,
        options,
        EngineOptions(attention="plain"),
        names=("00", "plain"),
        path="boundary",
        rounds=2,
    )
    assert (made.before, made.after) == ("00", "plain")
    assert len(made.before_samples) == len(made.after_samples) == 4
    # Decoded positions 3 to 10 and 2 to 9: each meets 4 and 8. In each of 2 layers and 4 runs.
    assert made.after_paths == {"boundary": 4 * 2 * 4, "in_place": 12 * 2 * 4}
    assert made.before_paths == made.after_paths and made.warning is None


def test_each_run_of_a_comparison_has_a_fresh_engine(monkeypatch):
    made = []
    original = Workload.make_engine
    monkeypatch.setattr(Workload, "make_engine", lambda *args: made.append(original(*args)) or made[-1])
    workload = Workload.alike(small_model(), ((1, 2),), 3, device="cpu")
    compare(workload, LADDER["00"].options, LADDER["00"].options, rounds=1)
    assert len({id(engine) for engine in made}) == len(made) == 2 + 4
    assert all(engine.stats().counters.generated_tokens == 3 for engine in made)


@pytest.mark.slow
def test_compare_is_about_the_last_rung_and_the_one_below_it():
    args = bench_main.make_parser().parse_args(["compare"])
    assert (args.before, args.after) == tuple(LADDER)[-2:]


@pytest.mark.slow
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

    def asked(before, after, names, path, measure):
        assert measure(SimpleNamespace(seconds=3.0, decode_seconds=1.0)) == expected
        raise Asked

    monkeypatch.setattr("labkit.bench.comparison.compared_runs", asked)
    with pytest.raises(Asked):
        bench(monkeypatch, f"compare {SMALL} --max-new-tokens 3 --rounds 1 {flag}")


@pytest.mark.slow
def test_the_instrument_can_be_tested_on_itself(monkeypatch, capsys):
    line = f"compare {SMALL} --max-new-tokens 3 --no-stop-on-eos --self-test 2"
    bench(monkeypatch, f"{line} --rounds 1")
    too_few = "A/A self-test, 2 comparisons: 2 'too few rounds for a verdict (2 needed)'"
    assert capsys.readouterr().out.splitlines()[-1] == too_few
    bench(monkeypatch, f"{line} --rounds 2")
    last = capsys.readouterr().out.splitlines()[-1]
    verdicts = re.findall(r"(\d) '(cannot tell|faster|slower)'", last)
    assert last.startswith("A/A self-test, 2 comparisons: ") and sum(int(n) for n, _ in verdicts) == 2


@pytest.mark.slow
def test_parity_is_said_prompt_by_prompt(tiny):
    engines = {name: InferenceEngine(tiny, LADDER[name].options, device="cpu") for name in ("00", "05")}
    table = parity_table(engines, ["To be", "O"], 6)
    assert list(table.columns) == ["00 = dense", "00 = transformers", "05 = dense", "05 = transformers"]
    assert list(table.index) == ["'To be'", "'O'"] and table.all().all()
