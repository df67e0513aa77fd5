"""Parts that the reader keeps: each a Python file under notebooks/mine/, which git leaves alone."""

import ast
import importlib.util
import inspect
import linecache
import math
import os
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit import paths
from labkit.checks import quoted, shown
from labkit.errors import OptionError

CONSTANTS = (bool, int, float, str, type(None))
MODULE = "mine_"  # the beginning of the name of a module that was read from a file
GAP_MARK = "# your lines here"  # stands in a skeleton above what the reader replaces


@dataclass(frozen=True)
class Kept:
    """A part of the reader's that was kept, where. Nothing of it runs until `load` is called."""

    lesson: str
    option: str
    path: Path

    @property
    def source(self) -> str:
        """The text of the file. Raises OptionError if it cannot be read."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"{self} cannot be read ({error}): keep the part again, or delete the file"
            ) from error

    def load(self) -> Any:
        """Run the file and return its part. Raises OptionError if the file cannot be read, or does not say
        which part is in it; what the reader's code raises passes through."""
        _ = self.source  # if it can be read
        spec = importlib.util.spec_from_file_location(f"{MODULE}{self.path.stem}", self.path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where inspect and Triton look for its source
        spec.loader.exec_module(module)
        name = getattr(module, "PART", None)
        if not isinstance(name, str) or not hasattr(module, name):
            raise OptionError(f'{self} does not end with PART = "...", the name of what is kept in it')
        return getattr(module, name)

    def __repr__(self) -> str:
        return f"{self.option} of lesson {self.lesson}, in {self.path.parent.name}/{self.path.name}"


def keep_all(lesson: str, parts: Mapping[str, Callable]) -> list[Kept]:
    """Write each part's source, with what it uses of the notebook, to a file of its own.

    Raises OptionError, with nothing written, for an option whose name can be none of a file's, for a part
    whose source cannot be found, or which uses something of the notebook that cannot be written down, and
    where a file cannot be written or, read back, is no such part.
    """
    texts = {option: text_of(lesson, option, part) for option, part in parts.items()}
    made = [Kept(lesson, option, paths.MINE / f"lesson_{lesson}_{option}.py") for option in texts]
    try:
        paths.MINE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=paths.MINE) as folder:
            new = [replace(part, path=Path(folder) / part.path.name) for part in made]
            for part in new:
                part.path.write_text(texts[part.option], encoding="utf-8")
                _check_loads(part)
            for part, old in zip(new, made, strict=True):
                os.replace(part.path, old.path)
    except OSError as error:
        raise OptionError(f"{' and '.join(texts)} cannot be kept in {paths.MINE}: {error}") from error
    return made


def _check_loads(part: Kept) -> None:
    try:
        part.load()
    except Exception as error:
        raise OptionError(
            f"{part.option} cannot be kept: its source, run without the notebook, raised "
            f"{type(error).__name__}: {quoted(error)}"
        ) from error


def text_of(lesson: str, option: str, part: Callable) -> str:
    """The text of the file in which a part is kept. Raises OptionError as `keep_all` does."""
    if not isinstance(option, str) or not option.isidentifier():
        raise OptionError(f"a part cannot be kept as {shown(option)}: give it the name of its option")
    pieces = _Pieces()
    try:
        name = pieces.add(part)
    except OptionError as error:
        raise OptionError(f"{option} cannot be kept: {error}") from error
    head = [f'"""My {option}, from lesson {lesson}."""', "", *sorted(pieces.imports)]
    if pieces.imports:
        head += ["", ""]
    return "\n".join([*head, *pieces.sources, f'PART = "{name}"', ""])


def kept() -> list[Kept]:
    """All parts that were kept, in the order of their lessons."""
    return [
        Kept(path.stem.split("_")[1], path.stem.split("_", 2)[2], path)
        for path in sorted(paths.MINE.glob("lesson_??_*.py"))
    ]


def is_written(part: Callable) -> bool:
    """Whether a part is the reader's own, with no gap left in any of its sources."""
    try:
        gaps = num_gaps(part)
    except OptionError:
        return False
    module = getattr(part, "fn", part).__module__  # of an interpreted kernel, its function's
    is_readers = module == "__main__" or module.startswith(MODULE)
    return is_readers and gaps == 0


def num_gaps(*parts: Callable) -> int:
    """How many gaps are left in parts and in what they use of the notebook, each counted once. Raises
    OptionError for a part whose source cannot be found."""
    pieces = _Pieces()
    for part in parts:
        pieces.add(part)
    return sum(source.count(GAP_MARK) for source in dict.fromkeys(pieces.sources))


class _Pieces:
    """What a part is made of: imports, and sources from the notebook, those first that others use."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.sources: list[str] = []
        self._names: set[str] = set()

    def add(self, part: Any) -> str:
        """The name that the part's own source binds."""
        function = inspect.unwrap(getattr(part, "fn", part))  # of a Triton kernel, its function
        source, namespace = definition_of(function)
        self._names.add(function.__name__)
        for name in _names_used(source):
            if name in namespace and name not in self._names:
                self._names.add(name)
                self._use(name, namespace[name])
        self.sources += [source, "", ""]
        return function.__name__

    def _use(self, name: str, value: Any) -> None:
        module, own_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if isinstance(value, ModuleType):
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else ""))
        elif _is_in_module(value, module, own_name):
            self.imports.add(f"from {module} import {own_name}" + (f" as {name}" if own_name != name else ""))
        elif (text := _as_python(value)) is not None:
            self.sources += [f"{name} = {text}", "", ""]
        elif callable(value) and own_name == name:
            self.add(value)
        else:
            raise OptionError(
                f"the part uses {name} ({type(value).__name__}) of the notebook, which cannot be kept: "
                "make it inside of the part"
            )


def _as_python(value: Any) -> str | None:
    """What makes a constant, in Python; None of anything else, such as an enum's member or NumPy's number,
    whose repr is no Python."""
    if type(value) not in CONSTANTS:
        return None
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _is_in_module(value: Any, module: str | None, name: str | None) -> bool:
    return (
        module not in (None, "__main__")
        and name is not None
        and not module.startswith(MODULE)  # a part that was kept before, which is written down once more
        and getattr(sys.modules.get(module), name, None) is value
    )


def _names_used(source: str) -> list[str]:
    """Names that a source takes from around it; its own variables are none, whatever the notebook calls by
    the same name."""
    tables, names = [symtable.symtable(source, "part", "exec")], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        read = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        names |= {s.get_name() for s in read if s.is_global() or table.get_type() == "module"}
    return sorted(names)


def definition_of(part: Any) -> tuple[str, dict[str, Any]]:
    """A function's or class's source, and the names that it sees. Raises OptionError if there is none, or if
    it needs more. Of a class, `inspect` finds no source in a notebook; its methods know the cell."""
    functions = [part, *vars(part).values()] if isinstance(part, type) else [part]
    codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
    if not codes:
        raise OptionError(f"{shown(part)} has no source: hand over a function, or a class with methods")
    code, *_ = codes
    around = {name for c in codes if c.co_filename == code.co_filename for name in c.co_freevars}
    if around := around - {"__class__"}:
        raise OptionError(f"it uses {min(around)} of the function around it: make it inside of the part")
    lines = "".join(linecache.getlines(code.co_filename))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(lines)):
        if not isinstance(node, kinds) or node.name != part.__name__:
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first <= code.co_firstlineno <= node.end_lineno:
            source = "\n".join(lines.splitlines()[first - 1 : node.end_lineno])
            function = next(f for f in functions if hasattr(f, "__globals__"))
            return textwrap.dedent(source), function.__globals__
    raise OptionError(
        f"the source of {part.__name__} cannot be found; write a class without methods inside of its user"
    )
