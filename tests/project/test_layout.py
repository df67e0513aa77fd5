"""The tests mirror the package: each module has a test of its name, there or in a folder above it."""

import re
from pathlib import Path

from labkit.paths import ROOT

TESTS, PACKAGE = ROOT / "tests", ROOT / "labkit"
IN_THEIR_ROOM = ("results", "show")  # tested by what they are for, several modules in a file
ELSEWHERE = ("bad_input", "browser", "project", "support")  # about all of it, and what tests share

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in PACKAGE.rglob("*.py")
    if not path.stem.startswith("__")
}
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))
TEST_FILES = [path for path in FILES if path.parts[0] not in ELSEWHERE and path.name != "conftest.py"]


def is_about(file: Path, name: str) -> bool:
    """Whether a test file is named after it: `test_name.py`, or `test_name_something.py`."""
    return re.fullmatch(rf"test_{name}(_.+)?", file.stem) is not None


def subjects_of(file: Path) -> list[str]:
    """What a file in this folder may be about: a module there or below, the package as a whole, or its
    `__main__`."""
    folder = PACKAGE / file.parent
    modules = [path.stem.strip("_") for path in folder.rglob("*.py") if path.stem != "__init__"]
    return [*modules, folder.name] if folder.is_dir() else []


def test_every_module_has_a_test_of_its_name():
    tested = {
        module
        for module in MODULES
        for file in TEST_FILES
        if file.parent in Path(module).parents and is_about(file, Path(module).name)
    }
    assert {name for name in MODULES - tested if name.split("/")[0] not in IN_THEIR_ROOM} == set()


def test_every_test_file_is_about_a_module_of_its_folder():
    homeless = [f.as_posix() for f in TEST_FILES if not any(is_about(f, name) for name in subjects_of(f))]
    assert homeless == []


def test_what_tests_share_is_in_support_alone():
    """But for the tables of bad input, which lie beside the test that reads them."""
    for file in FILES:
        if file.parts[0] == "bad_input":
            continue
        is_test = file.name.startswith("test_") or file.name == "conftest.py"
        assert is_test != (file.parts[0] == "support"), file


def test_no_test_file_imports_another():
    imports = re.compile(r"^(from|import) test_", re.MULTILINE)
    assert not [file for file in FILES if imports.search((TESTS / file).read_text(encoding="utf-8"))]
