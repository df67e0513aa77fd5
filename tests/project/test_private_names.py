"""Each package keeps its private names to itself, and figures know no engine."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.paths import ROOT

PACKAGE = ROOT / "labkit"
MODULES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
# Underscore names that are no secret, and those that other projects give no other name.
ALLOWED = {
    "_replace",
    "_asdict",
    "_fields",
    "_C",
    "_cuda_clearCublasWorkspaces",
    "_tokenizer",
    "_patch_lang_tensor",
}


NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ALLOWED


def defined_in(tree: ast.Module) -> set[str]:
    """Private names that a module gives: functions, classes, variables, and attributes of `self`."""
    names = {n.name for n in ast.walk(tree) if isinstance(n, NAMED)}
    names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names |= {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, ast.Store)
        and isinstance(n.value, ast.Name)
        and n.value.id in ("self", "cls")
    }
    return {name for name in names if is_private(name)}


# PyTorch has no public way to ask whether somebody profiles or counts operators.
NOT_PUBLIC = {"ranges.py": {"_profiler_enabled", "_len_torch_dispatch_stack"}}
DEFINED: dict[str, set[str]] = defaultdict(set)
for path, tree in MODULES.items():
    DEFINED[package_of(path)] |= defined_in(tree)


def imported_by(tree: ast.Module) -> list[ast.ImportFrom]:
    return [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("labkit")
    ]


def foreign_bases(path: Path, tree: ast.Module) -> set[str]:
    """Names that the module imports from other packages of labkit and derives a class from."""
    own = f"labkit.{package_of(path)}"
    imported = {
        a.asname or a.name for n in imported_by(tree) if not n.module.startswith(own) for a in n.names
    }
    bases = {
        b.id
        for k in ast.walk(tree)
        if isinstance(k, ast.ClassDef)
        for b in k.bases
        if isinstance(b, ast.Name)
    }
    return imported & bases


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_reaches_for_a_private_name_of_another_package(path):
    """Through an import, an object or a base class."""
    tree = MODULES[path]
    reached = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_private(n.attr)}
    reached |= {a.name for n in imported_by(tree) for a in n.names if is_private(a.name)}
    assert reached - NOT_PUBLIC.get(path.name, set()) <= DEFINED[package_of(path)]


def private_methods(kind: ast.ClassDef) -> set[str]:
    return {f.name for f in kind.body if isinstance(f, ast.FunctionDef) and is_private(f.name)}


CLASSES = {
    kind.name: kind for tree in MODULES.values() for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)
}


def inherited_methods(name: str) -> set[str]:
    """Private methods of the class of this name and of its bases, as far as they are labkit's."""
    if name not in CLASSES:
        return set()
    kind = CLASSES[name]
    bases = [base.id for base in kind.bases if isinstance(base, ast.Name)]
    return private_methods(kind).union(*map(inherited_methods, bases))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_class_overrides_a_private_method_of_another_package(path):
    own = {
        name
        for kind in ast.walk(MODULES[path])
        if isinstance(kind, ast.ClassDef)
        for name in private_methods(kind)
    }
    assert not own & set().union(*map(inherited_methods, foreign_bases(path, MODULES[path])))


def test_only_one_function_sets_what_it_is_told_the_name_of():
    """`watch.replaced`, which refuses what a class does not declare."""
    calls = {
        path: {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        for path, tree in MODULES.items()
    }
    setting = [path.name for path, names in calls.items() if {"setattr", "delattr"} & names]
    assert setting == ["replaced.py"]


FIGURES = [path for path in MODULES if package_of(path) == "show"]


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.name)
def test_figures_import_no_engine_and_no_cache(path):
    modules = {n.module for n in imported_by(MODULES[path])}
    modules |= {a.name for n in ast.walk(MODULES[path]) if isinstance(n, ast.Import) for a in n.names}
    assert not [m for m in modules if m.startswith(("labkit.engine", "labkit.kvcache"))]
