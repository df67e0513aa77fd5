"""Records and the outcome of the GPU tests, as readers find them on the disk: files that are none. What
is wrong inside of one is in tests/results/test_typed.py."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from bad_input import BadInput, World, values_of
from bad_values import JUNK, NO_FILES, without
from made_records import run_of, runs_record

from labkit.errors import RecordError
from labkit.results import files, load, load_all, load_gpu_tests
from labkit.results.published import headline

DEEP = 100_000
RUN = run_of(append_paths={"loop": 10}, new_tokens=(3,), gaps_us=(5, 6))
SIZES = {"num_requests": 1, "max_new_tokens": 3, "max_batch_size": 1}
SOUND = runs_record([("00", RUN), ("01", RUN)], **SIZES).to_dict()
RAW = json.dumps(SOUND).encode()

CONTENTS = {  # tests/test_json_file.py has more that is no JSON
    "cut": RAW[:300],
    "a byte order mark": b"\xef\xbb\xbf" + RAW,
    "nested in a key": b'{"kind": ' + b"[" * DEEP,
    "null": b"null",
}


def load_mine(folder: Path) -> object:
    with mock.patch.object(files, "RESULTS", folder):
        return load("mine")


def load_each(folder: Path) -> object:
    with mock.patch.object(files, "RESULTS", folder):
        return load_all("ladder")


Reader = Callable[[Path], object]
READERS: dict[str, Reader] = {
    "load": load_mine,
    "load_all": load_each,
    "load_gpu_tests": lambda folder: load_gpu_tests(folder / "mine.json"),
}


def read(world: World, reader: Reader, make: Callable[[Path], object]) -> None:
    """Read a folder in which `make` has made mine.json."""
    with world.place() as folder:
        make(folder / "mine.json")
        with world.untouched(folder):
            reader(folder)


def case(entry: str, name: str, what: str, make: Callable[[Path], object]) -> BadInput:
    return BadInput(entry, name, what, lambda world: read(world, READERS[entry], make), RecordError)


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


NAMES = without(JUNK, "text", "megabytes of text") | {
    "None": None,
    "True": True,
    "no text": "",
    "a path": "../tiny-gpt2/config",
    "a name with a NUL": "a\0b",
}
NO_RECORD = {name[:20]: name for name in ("nope", ".", "..", "a" * 300, "faults_cpu.json", "*", "\\udcff")}
NO_PATH = {"text": "x", "a number": 5, "None": None, "a list": []}
NO_KIND = {"another word": "x", "a path": "../ladder", "a number": 5, "None": None, "a list": []}
UNPUBLISHED = {"None": None, "no rung": "99", "a list": [1], "a number": 1}
A_PATH, A_KIND = "is no path: hand over a pathlib.Path", "is no kind of record; there are attention, "

CASES = [
    *values_of(
        RecordError,
        ("load, name", "is no name of a record", lambda _, bad: load(bad), NAMES),
        ("load, name", "is missing|cannot be read", lambda _, bad: load(bad), NO_RECORD),
        ("load_gpu_tests, path", A_PATH, lambda _, bad: load_gpu_tests(bad), NO_PATH),
        ("load_all, kind", A_KIND, lambda _, bad: load_all(bad), NO_KIND),
        ("headline", "nothing was published", lambda _, bad: headline(bad), UNPUBLISHED),
    ),
    *(case(entry, "mine", what, holding(content)) for entry in READERS for what, content in CONTENTS.items()),
    *(case(entry, "mine.json is ", what, make) for entry in READERS for what, make in NO_FILES.items()),
]
