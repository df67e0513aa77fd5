"""What the project needs is declared in pyproject.toml."""

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WHERE_INSTALLED = {"vllm"}  # beside labkit where somebody has it
# What a command line starts, and no line of code imports; and what `labkit.doctor` imports by its name.
STARTED = {"jupyterlab", "ipykernel", "nbconvert", "pytest", "pytest-xdist", "ruff", "mypy", "packaging"}
STARTED |= {"uvloop"}  # by uvicorn


def by_name(requirements: list[str]) -> dict[str, Requirement]:
    parsed = {canonicalize_name(r.name): r for r in map(Requirement, requirements)}
    assert len(parsed) == len(requirements), "a requirement is listed twice"
    return parsed


RUNTIME = by_name(PROJECT["dependencies"])
CHAT, SERVE, CLUSTER, CLIENTS, TEST = (
    by_name(PROJECT["optional-dependencies"][extra])
    for extra in ("chat", "serve", "cluster", "clients", "test")
)
del TEST["labkit"], CLUSTER["labkit"]  # with the other extras


def imported_by(source: str) -> set[str]:
    """The first part of every module that a source imports, here or in a function, or by `importorskip`."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
            modules.add(node.args[0].value)
    return {module.split(".")[0] for module in modules}


distributions_by_module = cache(packages_distributions)  # it reads the files of every package


def packages_of(folder: str) -> set[str]:
    """The packages that the code in a folder imports, by the names by which they are installed."""
    ours = {"labkit", *(path.stem for path in (ROOT / "tests").rglob("*.py"))}
    sources = (ROOT / folder).rglob("*.py")
    modules = set().union(*(imported_by(path.read_text(encoding="utf-8")) for path in sources))
    # A package that is not installed here has its module's name.
    distributions = {"grpc": ["grpcio"]} | distributions_by_module()
    return {
        canonicalize_name(distributions.get(module, [module])[0])
        for module in modules - ours - set(sys.stdlib_module_names) - WHERE_INSTALLED
    }


@pytest.mark.slow
def test_what_is_imported_is_declared_and_what_is_declared_is_imported_or_started():
    package, tests = packages_of("labkit"), packages_of("tests")
    extra = {*CHAT, *SERVE, *CLUSTER}
    assert package | packages_of("data") <= {*RUNTIME, *extra} and set(RUNTIME) <= package | STARTED
    assert tests <= {*RUNTIME, *extra, *CLIENTS, *TEST} and {*CHAT, *CLIENTS, *TEST} <= tests | STARTED
    assert {*SERVE, *CLUSTER} <= packages_of("labkit/serve") | STARTED


def test_a_requirement_has_bounds_on_both_sides():
    """But `packaging`, whose versions are years."""
    for name, requirement in (RUNTIME | CHAT | SERVE | CLUSTER | CLIENTS | TEST).items():
        assert {s.operator for s in requirement.specifier} == ({">="} if name == "packaging" else {">=", "<"})
