"""Bad input to every entry of the project: refused by name, with an error that is documented, and nothing has
changed. The tables beside this file are the input."""

import importlib.util
import re
import time
from pathlib import Path

import pytest
from bad_input import BadInput, World

from labkit import paths
from labkit.errors import LabkitError

LONGEST = 1000  # characters of a message
MOST_SECONDS = 1  # of this thread's work, so that a busy machine is none of it
TABLES = [path for path in sorted(Path(__file__).parent.glob("*.py")) if path != Path(__file__)]


def cases_of(path: Path) -> list[BadInput]:
    """The `CASES` of a table."""
    spec = importlib.util.spec_from_file_location(f"bad_input_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CASES


CASES = [case for path in TABLES for case in cases_of(path)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


ENTRIES = list(dict.fromkeys(case.entry for case in CASES))


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_bad_input_is_refused_by_name_before_anything_has_changed(entry, world, monkeypatch, capsys):
    """All cases of an entry; those that fall are told together."""
    monkeypatch.setattr(paths, "MINE", world.folder / "mine")
    before = world.state()
    fell = {}
    for case in (case for case in CASES if case.entry == entry):
        wrong = wrong_with(case, world, capsys)
        if world.state() != before:
            wrong, before = "something has changed", world.state()
        if wrong:
            fell[f"{case.name} = {case.label}"] = wrong
    assert fell == {}


def wrong_with(case: BadInput, world: World, capsys) -> str:
    """What is wrong with how a case is refused; empty if nothing is."""
    started = time.thread_time()
    try:
        case.call(world)
    except case.error as refusal:
        message = said(refusal, capsys)
    except Exception as error:
        return f"raises {error!r}"
    else:
        return "is taken"
    if (took := time.thread_time() - started) > MOST_SECONDS:
        return f"is refused after {took:.1f} s of work"
    is_line = 0 < len(message) <= LONGEST and "\n" not in message and "Traceback" not in message
    return "" if is_line and re.search(case.name, message) else f"says {message[:LONGEST]!r}"


def said(refusal: BaseException, capsys) -> str:
    """What an error says; of a command that ends with exit status 2, the last line that it prints."""
    if not isinstance(refusal, SystemExit):
        return str(refusal) if isinstance(refusal, LabkitError) else ""
    lines = capsys.readouterr().err.strip().splitlines()
    return lines[-1] if refusal.code == 2 and lines else ""
