"""Commands that measure: what each prints, and the samples of the record that it writes."""

import pytest
from bench_commands import SMALL

from labkit import LADDER
from labkit.results.files import record_of

pytestmark = pytest.mark.slow

# The command line, what it prints, the fields of each sample, and their values, or how many it has of times.
RUNS = {
    "host-time": (
        *("--device cpu --batch-sizes 1,2 --steps 3 --rounds 1", "microseconds of a step"),
        ("rung", "batch_size", "step_seconds"),
        [(rung, b, 3) for rung in LADDER for b in (1, 1, 2, 2)],
    ),
    "ladder": (
        *(f"{SMALL} --load alike --max-new-tokens 4 --no-stop-on-eos --rounds 1", "decode tokens/s"),
        *(("rung",), [(rung,) for rung in LADDER for _ in range(2)]),
    ),
}


@pytest.mark.parametrize("command", RUNS)
def test_a_command_prints_a_table_and_writes_a_record(recorded, capsys, command):
    line, said, fields, expected = RUNS[command]
    made = recorded(f"{command} {line}")
    assert said in capsys.readouterr().out
    assert made["kind"] == command.replace("-", "_")
    samples = [[sample[field] for field in fields] for sample in made["samples"]]
    assert [tuple(len(v) if isinstance(v, list) else v for v in values) for values in samples] == expected


def test_on_a_cpu_the_ladder_serves_an_assistants_users_and_compares_whole_runs(recorded, capsys):
    made = recorded("ladder --device cpu --rungs 13,14 --num-requests 3 --rounds 1")
    head, *_ = (line for line in capsys.readouterr().out.splitlines() if "over the rung below" in line)
    assert head.split()[:2] == ["tokens/s", "over"]  # and not decode tokens/s
    record = record_of(made, "out")
    asked = ("load", "num_requests", "max_new_tokens", "max_batch_size")
    assert [record.settings[name] for name in asked] == ["assistant", 3, 32, 16]
    (before, _), (after, _) = record.runs_of("13"), record.runs_of("14")
    assert before.new_tokens == after.new_tokens and min(before.prompt_lens) > 512
    assert record.throughputs["14"] == [run.tokens / run.seconds for run in record.runs_of("14")]
    assert record.throughput("14") == sum(record.throughputs["14"]) / 2
