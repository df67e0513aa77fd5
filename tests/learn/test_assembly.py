"""The reader's engine: which kept part serves on which rung, and that parts are proven together."""

import pytest
from helpers import make_engine, small_model

from labkit import LADDER, paths
from labkit.engine.parts import PARTS
from labkit.errors import OptionError
from labkit.kernels import paged_attention_plain
from labkit.learn.assembly import RETIRED, Assembly
from labkit.learn.kept import kept
from labkit.learn.lessons import GATES

# By lesson and option, the rungs on which a part serves.
SERVES = {
    ("00", "attention"): "00 01 02 03 04 05",
    ("01", "block_tables"): "01 02 03 04 05",
    ("02", "kv_append"): "02 03 04",
    ("03", "kv_write"): "03",
    ("04", "kv_write"): "04 05",
    ("05", "block_info"): "05",
    ("06", "block_tables"): "06 07 08 09 10 11 12 13 14 16",
    ("07", "layer_tables"): "07 08 09 10 11 12 13 14 16",
    ("07", "kv_write"): "07 08",
    ("08", "launch"): "08 09 10 11 12 13 14 16",
    ("09", "layer_kernels"): "09 10",
    ("10", "readback"): "10 11 12 13 14 16",
    ("11", "latency"): "11 12 13 14 16",
    ("12", "sampler"): "12 13 14 16",
    ("13", "batching"): "13 14 16",
    ("14", "prefixes"): "14 16",
}


def write(lesson: str, option: str, text: str) -> None:
    (paths.MINE / f"lesson_{lesson}_{option}.py").write_text(text)


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """All parts kept, and two files that are no lesson's part."""
    monkeypatch.setattr(paths, "MINE", tmp_path)
    for lesson, option in SERVES:
        write(lesson, option, "raise RuntimeError('this was run')\n")
    write("20", "weights", "raise RuntimeError('this was run')\n")
    write("02", "block_tables", "raise RuntimeError('this was run')\n")
    return Assembly(kept())


@pytest.mark.parametrize("number", LADDER)
def test_a_part_serves_until_a_later_rung_puts_something_else_in_its_place(mine, number):
    found = {(part.lesson, option) for option, part in mine.kept_on(number).items()}
    assert found == {part for part, rungs in SERVES.items() if number in rungs.split()}


def test_nothing_runs_before_an_engine_is_built(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MINE", tmp_path)
    write("01", "block_tables", "raise RuntimeError('this was run')\n")
    mine = Assembly(kept())
    assert mine.table().loc["01", "yours"] == "block_tables (lesson 01)"
    assert mine.table().loc["06", "yours"] == "(the package's)"
    with pytest.raises(RuntimeError, match="this was run"):
        mine.engine("01", small_model(), device="cpu")


@pytest.mark.parametrize("option, lesson", [("attention", "00"), ("layer_kernels", "09")])
def test_a_retired_part_is_one_that_the_rung_has_no_use_for(option, lesson):
    first = RETIRED[option, lesson]
    last = f"{int(first) - 1:02}"
    for number, is_used in ((last, True), (first, False)):
        options = LADDER[number].options
        value = getattr(options, option)
        part = {option: paged_attention_plain if option == "attention" else PARTS[option][value]}
        if is_used:
            make_engine(options=options, parts=part)
        else:
            article = "an" if option == "attention" else "a"
            with pytest.raises(OptionError, match=f"no use for {article} {option}"):
                make_engine(options=options, parts=part)


def test_every_gates_part_has_a_rung_to_serve_on(mine):
    assert {option for _, option in SERVES} == {part for gate in GATES.values() for part in gate.parts}


@pytest.mark.slow
def test_parts_are_proven_together_and_those_that_fail_are_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MINE", tmp_path)
    stale = (
        "from labkit.learn.lesson_01.tables import NumberOnlyBlockTables\n\n\n"
        'PART = "NumberOnlyBlockTables"\n'
    )
    write("01", "block_tables", stale)
    write("02", "kv_append", "from labkit.kvcache import AppendBatched\n\nPART = 'AppendBatched'\n")
    write("05", "block_info", "import nothing_of_this_name\n")
    passed, reports = Assembly(kept()).proven("cpu")
    assert [part.option for part in passed.kept] == ["kv_append"]
    told = {part.lesson: report.text for part, report in reports.items()}
    assert told["01"].startswith("block_tables breaks a contract: a row names the blocks")
    assert told["02"].startswith("kv_append: right.")
    assert "raised ModuleNotFoundError" in told["05"]


def test_a_kept_part_that_was_proven_is_in_an_engine(monkeypatch, tmp_path):
    """Lesson 07's kernel was not, and so anything passed for it."""
    monkeypatch.setattr(paths, "MINE", tmp_path)
    write("07", "kv_write", "def raises(*args):\n    raise ValueError('mine')\n\n\nPART = 'raises'\n")
    passed, reports = Assembly(kept()).proven("cpu")
    assert passed.kept == () and "ValueError" in next(iter(reports.values())).text
