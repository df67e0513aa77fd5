"""The tests mirror the package, folder by folder, and share what is in tests/support alone."""

import re

from labkit.paths import ROOT

TESTS = ROOT / "tests"
ELSEWHERE = ("bad_input", "browser", "project", "soak", "support")  # about all of it, and what tests share
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))


def test_every_test_file_is_about_a_folder_of_the_package():
    folders = {file.parent for file in FILES if file.parts[0] not in ELSEWHERE}
    assert not [folder for folder in folders if not (ROOT / "labkit" / folder / "__init__.py").is_file()]


def test_what_tests_share_is_in_support_alone():
    """But for the tables of bad input and the soak, which lie beside the tests that use them."""
    for file in (file for file in FILES if file.parts[0] not in ("bad_input", "soak")):
        is_test = file.name.startswith("test_") or file.name == "conftest.py"
        assert is_test != (file.parts[0] == "support"), file
        assert not re.search(
            r"^(from|import) test_", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE
        )
