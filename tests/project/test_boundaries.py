"""What a part of the package may know of another, read from its sources."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from labkit.paths import ROOT

PACKAGE = ROOT / "labkit"
# GPT-2 by its types, by the names of its weights, and by its own names for its sizes.
GPT2_NAME = re.compile(r"(?i:gpt2\w*)|wte|wpe|ln_[12f]|c_(attn|proj|fc)|n_(embd|head|layer|positions|inner)")
# Private names that other projects give no other name.
ALLOWED = """
_C _addmm_activation _asdict _cuda_clearCublasWorkspaces _exit _fields _get_np_dtype
_len_torch_dispatch_stack _option_string_actions _patch_attr _patch_lang _patch_lang_tensor
_profiler_enabled _replace _tokenizer
"""
# Modules that open ports, speak to others, or run what they read. `huggingface_hub` is asked for a hub id.
UNWANTED = """
socket socketserver http urllib requests httpx ssl ftplib smtplib uvicorn starlette xmlrpc zmq tornado
pickle cPickle dill cloudpickle shelve marshal
"""
PAIR = [PACKAGE / "serve" / f"{name}.py" for name in ("engine_client", "engine_process", "wire")]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    """Those of the package, parsed for the first test that asks: collecting all tests should not wait."""
    sources = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    return {path: ast.parse(source) for path, source in sources.items()}


def identifiers(tree: ast.AST) -> set[str]:
    """Every name that code goes by: variables, attributes, arguments, keywords, imports, definitions."""
    names = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                names |= set(value.split("."))
    return names


def gpt2_names(tree: ast.AST) -> set[str]:
    return {name for name in identifiers(tree) if GPT2_NAME.fullmatch(name)}


@pytest.mark.slow
def test_only_the_model_and_the_lessons_know_gpt2(modules):
    others = {path: tree for path, tree in modules.items() if path.parts[0] not in ("model", "learn")}
    assert len(others) > 100
    assert {path: names for path, tree in others.items() if (names := gpt2_names(tree))} == {}


def private(names: set[str]) -> set[str]:
    return {n for n in names if n.startswith("_") and not n.startswith("__")} - set(ALLOWED.split())


def bound_in(tree: ast.Module) -> set[str]:
    """Names that a module gives: functions, classes, variables, and attributes of `self`."""
    nodes = list(ast.walk(tree))
    named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {node.name for node in nodes if isinstance(node, named)}
    names |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    kept = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return names | {n.attr for n in kept if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")}


def imports(tree: ast.Module) -> dict[str, set[str]]:
    """The names that are imported from each module; of `import a.b`, none."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found[node.module or ""] |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.name] |= set()
    return found


@pytest.mark.slow
def test_each_package_keeps_its_private_names_to_itself(modules):
    """Through an import or an object."""
    own: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules.items():
        own[path.parts[0]] |= bound_in(tree)
    reached = {}
    for path, tree in modules.items():
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= set().union(*(given for module, given in imports(tree).items() if "labkit" in module))
        reached[path] = private(names) - own[path.parts[0]]
    assert {path: names for path, names in reached.items() if names} == {}


@pytest.mark.slow
def test_only_one_function_sets_what_it_is_told_the_name_of(modules):
    """`watch.replaced`, which refuses what a class does not declare."""
    setting = {
        path.as_posix()
        for path, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr")
    }
    assert setting == {"watch/replaced.py"}


@pytest.mark.slow
def test_imports_run_one_way(modules):
    """Inside a function, too: a room imports itself, the rooms before it, and files that lie in none."""
    rooms = ["results", "model", "kernels", "kvcache", "engine", "parallel", "watch", "bench"]
    above = {room: {*rooms[i + 1 :], "show", "learn", "lab"} for i, room in enumerate(rooms)}
    reached = {}
    for path, tree in modules.items():
        names = {f"{module}.{name}" for module, given in imports(tree).items() for name in given or {""}}
        known = {name.split(".")[1] for name in names if name.startswith("labkit.")}
        reached[path] = known & above.get(path.parts[0], set())
    assert {path: rooms for path, rooms in reached.items() if rooms} == {}


@pytest.mark.slow
def test_no_module_can_open_a_port_unpickle_or_trust_the_code_of_a_checkpoint(modules):
    """Those commands too that no test runs. The server's room may do the first, and never the others."""
    assert len(modules) > 200
    found = {
        path.as_posix(): {name.split(".")[0] for name in imports(tree)} & set(UNWANTED.split())
        for path, tree in modules.items()
    }
    assert {path: modules for path, modules in found.items() if modules} == {
        "serve/__main__.py": {"uvicorn"},
        "serve/http.py": {"starlette"},
        "serve/running.py": {"uvicorn", "starlette"},
        # The three of a pair of sockets between two processes, which has no address.
        **{f"serve/{path.name}": {"socket"} for path in PAIR},
    }
    assert not re.search(r"\.bind\(|\.listen\(|AF_INET", "".join(path.read_text() for path in PAIR))
    calls = "start_server|create_server|open_connection|torch.load|load_pickle|unsafe_load"
    calls += "|trust_remote_code(?!=False)"
    sources = {path: (PACKAGE / path).read_text(encoding="utf-8") for path in modules}
    assert {path: made for path, source in sources.items() if (made := re.findall(calls, source))} == {}
