"""Parts that the reader keeps: source of a notebook as a file that stands alone, and runs when asked to."""

import math
from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit import paths
from labkit.errors import OptionError
from labkit.kvcache import CachedBlockTables
from labkit.learn import kept
from labkit.learn.kept import Kept, is_written, keep_all

CELLS = (
    "import math\nimport torch as t\nfrom collections import deque as queue",
    "from labkit.kvcache.block_tables import BlockTables",
    "WIDTH = 7\nran = []\n\ndef wider(x):\n    return math.sqrt(x) + WIDTH",
    "def unused():\n    return ran",
    """
class Mine(BlockTables):
    '''My own.'''

    def fill(self, out, sessions):
        width = wider(16)
        return t.full((2,), width), [s for s in queue(sessions)], len(sessions)
""",
    "class Leans(BlockTables):\n    def fill(self, out, sessions):\n        ran.append(out)",
    "class Empty(BlockTables):\n    pass",
    "def times(x):\n    return wider(x) * 2",
    "from dataclasses import dataclass\n@dataclass\nclass Row:\n    width: int",
    "class WithRow(BlockTables):\n    def fill(self, out, sessions):\n        return Row(3)",
    "class Gap(BlockTables):\n    def fill(self, out, sessions):\n        # your lines here\n        pass",
    "class NamesAlike(BlockTables):\n    def fill(self, out, ran):\n        unused = [WIDTH for t in ran]\n"
    "        return [ran, unused]",
    "class OnAGap(Gap):\n    def row(self):\n        return 1",
    "import numpy as np\nfrom math import inf\nfrom labkit import FinishReason\n"
    "LOWEST, SCALE, DONE = -inf, np.float64(0.125), FinishReason.STOP",
    "def sum(values):\n    return 42\n\ndef uses_own_sum():\n    return sum([1, 2]), LOWEST, inf",
    "def uses_scale():\n    return SCALE\ndef uses_done():\n    return DONE",
    "def outer(width):\n    def inner():\n        return width\n    return inner\nclosure = outer(7)",
    "@t.inference_mode()\ndef decorated():\n    return t.is_inference_mode_enabled()",
    "wider.by = 3\ndef in_a_default(x=wider.by):\n    return x",
)
FILE = '''"""My block_tables, from lesson 01."""

from collections import deque as queue
from labkit.kvcache.block_tables import BlockTables
import math
import torch as t


WIDTH = 7


def wider(x):
    return math.sqrt(x) + WIDTH


class Mine(BlockTables):
    \'\'\'My own.\'\'\'

    def fill(self, out, sessions):
        width = wider(16)
        return t.full((2,), width), [s for s in queue(sessions)], len(sessions)


PART = "Mine"
'''


@pytest.fixture(scope="module")
def notebook():
    """What the cells of a notebook have defined."""
    shell = InteractiveShell()
    for cell in CELLS:
        assert shell.run_cell(cell).success
    return shell.user_ns


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")
    return tmp_path / "mine"


def keep(lesson: str, option: str, part: Callable) -> Kept:
    (made,) = keep_all(lesson, {option: part})
    return made


def test_a_part_is_kept_with_what_it_uses_and_nothing_else(notebook, folder):
    part = keep("01", "block_tables", notebook["Mine"])
    assert part.source == FILE
    assert part.path == folder / "lesson_01_block_tables.py"
    assert repr(part) == "block_tables of lesson 01, in mine/lesson_01_block_tables.py"


def test_a_parts_own_variables_may_be_called_as_something_of_the_notebook(notebook):
    """Which cannot be kept, or need not: `ran` is a list there, `t` is torch, `unused` a function."""
    part = keep("01", "block_tables", notebook["NamesAlike"])
    assert part.load().fill(None, None, [1, 2]) == [[1, 2], [7, 7]]
    assert is_written(notebook["NamesAlike"])
    assert "WIDTH = 7" in part.source and "torch" not in part.source and "def unused" not in part.source


def test_a_function_can_be_kept(notebook):
    assert keep("03", "kv_write", notebook["times"]).load()(9) == 20
    assert keep("03", "kv_write", notebook["decorated"]).load()()


def test_what_the_notebook_calls_as_a_builtin_is_kept_and_so_is_infinity(notebook):
    kept_part = keep("03", "kv_write", notebook["uses_own_sum"])
    assert kept_part.load()() == notebook["uses_own_sum"]() == (42, -math.inf, math.inf)
    assert keep("04", "kv_write", kept_part.load()).source.count("return 42") == 1  # no file leans on another


def test_keeping_again_takes_the_place_of_what_was_kept(notebook):
    keep("01", "block_tables", notebook["times"])
    keep("01", "block_tables", notebook["Mine"])
    (part,) = kept.kept()
    assert part.source == FILE


def test_kept_parts_come_in_the_order_of_their_lessons(notebook):
    for lesson, option in (("03", "kv_write"), ("01", "block_tables"), ("10", "readback")):
        keep(lesson, option, notebook["times"])
    assert [(part.lesson, part.option) for part in kept.kept()] == [
        ("01", "block_tables"),
        ("03", "kv_write"),
        ("10", "readback"),
    ]


def test_reading_what_was_kept_runs_nothing(folder):
    folder.mkdir()
    (folder / "lesson_01_block_tables.py").write_text("raise SystemExit", encoding="utf-8")
    (part,) = kept.kept()
    assert part.source == "raise SystemExit"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"cannot be read \(.*No such file.*keep the part again, or delete the file"),
        (b"\xff\xfe", r"cannot be read \(.*decode"),
        (b"x = 1", "does not end with PART"),
        (b"PART = 5", "does not end with PART"),
        (b'PART = "gone"', "does not end with PART"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(folder, content, words):
    folder.mkdir()
    path = folder / "lesson_01_block_tables.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=rf"block_tables of lesson 01, in mine/{path.name} {words}"):
        kept.Kept("01", "block_tables", path).load()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Leans", r"uses ran \(list\) of the notebook, which cannot be kept: make it inside of the part"),
        ("uses_scale", r"uses SCALE \(float64\) of the notebook"),
        ("uses_done", r"uses DONE \(FinishReason\) of the notebook"),
        ("closure", "it uses width of the function around it"),
        ("in_a_default", "its source, run without the notebook, raised AttributeError: .*by"),
        ("Empty", "has no source: hand over a function, or a class with methods"),
        ("WithRow", "source of Row cannot be found; write a class without methods inside of its user"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_what_was_kept_stays(notebook, name, words):
    keep("01", "block_tables", notebook["Mine"])
    with pytest.raises(OptionError, match=words):
        keep("01", "block_tables", notebook[name])
    (part,) = kept.kept()
    assert part.source == FILE


@pytest.mark.parametrize(
    ("option", "make", "words"),
    [
        ("kv_write", lambda mine: (mine.rmdir(), mine.write_text("")), "File exists"),
        ("x" * 300, lambda mine: None, "too long"),
    ],
)
def test_where_nothing_can_be_written_nothing_is(notebook, folder, option, make, words):
    folder.mkdir()
    make(folder)
    with pytest.raises(OptionError, match=words):
        keep_all("03", {"launch": notebook["times"], option: notebook["times"]})
    assert not (folder / "lesson_03_launch.py").exists()


def test_a_built_in_is_refused():
    with pytest.raises(OptionError, match="has no source"):
        keep("01", "block_tables", len)


def test_a_triton_kernel_is_kept_with_the_function_that_launches_it(folder):
    pytest.importorskip("triton")
    shell = InteractiveShell()
    for cell in (
        "import torch, triton\nimport triton.language as tl",
        "@triton.jit\ndef one_more(x, N: tl.constexpr):\n    tl.store(x + tl.arange(0, N), N)",
        "def launch(x):\n    one_more[(1,)](x, len(x))\n    return x",
    ):
        assert shell.run_cell(cell).success
    part = keep("03", "kv_write", shell.user_ns["launch"])
    assert "@triton.jit\ndef one_more(x, N: tl.constexpr):" in part.source
    assert "import triton.language as tl" in part.source.splitlines()


@pytest.mark.parametrize(
    ("name", "written"), [("Mine", True), ("Gap", False), ("OnAGap", False), ("Leans", False)]
)
def test_a_part_is_written_once_no_gap_is_left_in_it_or_below_it(notebook, name, written):
    assert is_written(notebook[name]) is written


def test_the_packages_own_part_is_not_the_readers():
    assert not is_written(CachedBlockTables)
