"""Lesson 01: its gaps can be filled, counts are those of the rows made, what is broken is broken."""

import inspect
import re
from itertools import pairwise

import nbformat
import pytest
from helpers import make_engine
from IPython.core.interactiveshell import InteractiveShell

from labkit import LADDER, CacheConfig, SamplingParams, lab
from labkit.engine import InferenceSession
from labkit.kvcache import CachedBlockTables
from labkit.learn import kept, lesson_01
from labkit.paths import ROOT

CACHED = LADDER["01"].options

# --- what the reader writes ----------------------------------------------------------------------------

CELLS = nbformat.read(ROOT / "notebooks/01_block_table_cache.ipynb", as_version=4).cells
GAP = re.compile(r"^ +# your lines here\n.*$", re.MULTILINE)  # with the line that it stands above
LINES = re.compile(r"<details>.*?</details>", re.DOTALL)


def lines_of(hint: str) -> list[str]:
    """The pieces of code that a collapsed hint holds, one per gap."""
    return [
        lines
        for part in LINES.findall(hint)
        for lines in re.findall(r"```python\n(.*?)\n```", part, re.DOTALL)
    ]


def filled(skeleton: str, pieces: list[str]) -> str:
    assert len(GAP.findall(skeleton)) == len(pieces)
    rest = iter(pieces)
    return GAP.sub(lambda _: next(rest), skeleton)


STEPS = [(cell.source, lines_of(hint.source)) for cell, hint in pairwise(CELLS) if GAP.search(cell.source)]


@pytest.mark.slow
def test_the_hints_fill_the_gaps_and_the_part_can_be_kept(capsys, monkeypatch, tmp_path):
    here, shell = lab.start("01"), InteractiveShell()
    shell.user_ns |= {"here": here, "no_sharing": CacheConfig(prefix_cache=False)}
    (imports,) = [cell.source for cell in CELLS if "WeakKeyDictionary\n" in cell.source]
    shell.run_cell(imports).raise_error()
    assert len(STEPS) == 3
    for skeleton, pieces in STEPS:
        capsys.readouterr()
        shell.run_cell(filled(skeleton, pieces)).raise_error()
        verdict, count = capsys.readouterr().out.splitlines()
        assert verdict.startswith("block_tables: right.")
        assert count == "rows made: 96 of 6144"

    monkeypatch.setattr(kept, "MINE", tmp_path / "mine")
    (mine,) = here.keep(block_tables=shell.user_ns["MyBlockTables"])
    part = mine.load()
    assert part.__module__ != "__main__" and here.check(block_tables=part).ok
    card = here.card(block_tables=part)
    assert card["yours"].equals(card["the package's"])


def test_a_part_that_raises_is_not_counted():
    assert lesson_01.rows_made(make_engine(options=CACHED)) == (
        "rows made: not counted, because the engine raised AttributeError: "
        "'CachedBlockTables' object has no attribute 'num_made'"
    )


def test_the_hints_are_the_packages_own_lines():
    """Of the signature, and of the rows that are put together in one call."""
    _, (signature,), (_, fill) = (pieces for _, pieces in STEPS)
    row_source = inspect.getsource(InferenceSession.get_paged_block_table_row_cpu)
    assert signature.strip().replace("return", "signature =") in row_source
    fill_lines = inspect.getsource(CachedBlockTables.fill).splitlines()
    loop, offset, _, stack = fill.splitlines()
    assert {loop, offset, stack} <= set(fill_lines)


# --- what the lesson breaks, and times -----------------------------------------------------------------


def test_half_a_signature_misses_copy_on_write_and_nothing_else():
    def tokens(tables_class, prompt):
        engine = make_engine(options=CACHED)
        engine.decode_step.block_tables = tables_class(engine.kv_manager, max_batch_size=8)
        (done,) = engine.generate([prompt], SamplingParams(20, stop_on_eos=False))
        return done.token_ids

    for prompt, agrees in (((1, 2, 3, 4), True), ((1, 2, 3, 4, 5), False)):  # a full last block, and not
        right, wrong = (tokens(t, prompt) for t in (CachedBlockTables, lesson_01.NumberOnlyBlockTables))
        assert (right == wrong) is agrees


def test_only_rolling_back_keeps_a_regrown_row_right():
    blocks, row = lesson_01.cut_and_regrow(forget_rows=False)
    assert (blocks, row) == ([0, 3, 2], [0, 1, 2])
    assert lesson_01.cut_and_regrow(forget_rows=True) == ([0, 3, 2], [0, 3, 2])


@pytest.mark.parametrize(("num_buffers", "arrived"), [(1, 1), (2, 2), (6, 6)])
def test_a_late_copy_brings_the_rows_of_whoever_wrote_last(num_buffers, arrived):
    assert lesson_01.rows_arrived(6, num_buffers) == arrived


def test_kept_rows_are_quicker_than_rows_made_anew():
    rebuilt, kept, anew = lesson_01.table_times("cpu", batch_size=16, repeats=5)
    assert 0 < kept < anew and rebuilt > 0
