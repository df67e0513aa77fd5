"""Records, published figures and the outcome of the GPU tests, as readers find them on the disk."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from bad_input import BadInput, World, values_of
from bad_values import JUNK, NO_FILES, without
from made_records import run_of, runs_record

from labkit.errors import RecordError
from labkit.results import files, load, load_all, load_gpu_tests, published_figures
from labkit.results.published import PUBLISHED, headline

NAN, INF, DEEP = float("nan"), float("inf"), 100_000
RUN = run_of(append_paths={"loop": 10}, new_tokens=(3,), gaps_us=(5, 6))
SIZES = {"num_requests": 1, "max_new_tokens": 3, "max_batch_size": 1}
SOUND = runs_record([("00", RUN), ("01", RUN)], **SIZES).to_dict()
POSTS = json.loads(PUBLISHED.read_text(encoding="utf-8"))[:1]
GPU_TESTS = json.loads((files.RESULTS / "gpu_tests.json").read_text(encoding="utf-8"))
RAW = json.dumps(SOUND).encode()

CONTENTS = {
    "empty": b"",
    "cut": RAW[:300],
    "with a tail": RAW + b"]",
    "no UTF-8": b"\xff" + RAW,
    "UTF-16": RAW.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + RAW,
    "nested": b"[" * DEEP,
    "nested in a key": b'{"kind": ' + b"[" * DEEP,
    "a key twice": b'{"a": 1, "a": 2}',
    "null": b"null",
    "NaN": b"NaN",
}
NO_TEXT = (None, 5, True, [1], {"a": 1})
NO_NUMBER = (None, "x", True, [1], {"a": 1}, NAN, INF, -1.0)
NO_OBJECT = (None, "x", 5, [1])
RECORD = {  # by the path to a value
    ("kind",): (*NO_TEXT, "", "guess", "Ladder"),
    ("host",): NO_OBJECT,
    ("host", "cpu_cores"): ("x", -1, 1.5, True),
    ("bandwidth",): (*NO_NUMBER, 0),
    ("settings", "num_requests"): (*NO_NUMBER, 0.5),
    ("samples",): (None, "x", 5, {"a": 1}, [], [1], [None], [[]]),
    ("samples", 1, "append_paths"): (*NO_OBJECT, {"loop": "x"}, {"loop": -1}, {"x" * 5000: None}),
    ("samples", 1, "prompt_lens"): (None, "x", 5, ["x"], [None], [NAN], [-1]),
}
POST = {
    (0,): (None, 1, "x", []),
    (0, "write_up"): (None, 36, "x", "", "-1", "\ud800", "x" * 5000),
    (0, "workload"): NO_TEXT,
    (0, "rung_before"): (5, [1]),
    (0, "figures"): (None, "x", 5, [], [1], [None]),
    (0, "figures", 0, "metric"): (None, 5, [1], POSTS),
    (0, "figures", 0, "higher_is_better"): (None, 0, 1, "true"),
    (0, "figures", 0, "before"): (*NO_NUMBER, 0),
    (0, "figures", 0, "before_runs"): ("x", 5, [], ["x"], [NAN], {}),
}
TESTS = {
    ("passed",): (None, "x", -1, 1.5, True),
    ("seconds",): NO_NUMBER,
    ("host",): NO_OBJECT,
    ("commit",): NO_TEXT,
}


def changed(sound: object, path: tuple, value: object) -> bytes:
    """The JSON of `sound` with the value at `path` replaced."""
    copy = place = json.loads(json.dumps(sound))
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(copy).encode()


def lacking(sound: object, path: tuple) -> bytes:
    """The JSON of `sound` without what is at `path`."""
    copy = place = json.loads(json.dumps(sound))
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return json.dumps(copy).encode()


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
    "published_figures": lambda folder: published_figures(folder / "mine.json"),
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


def broken(entry: str, sound: object, table: dict[tuple, tuple]) -> list[BadInput]:
    """A case for each wrong value, and for each key that is missing."""
    keys = [path for path in table if isinstance(path[-1], str) and path != ("kind",)]
    return [
        *(
            case(entry, str(path[-1]), f"{path[:-1]} {value!r:.40}", holding(changed(sound, path, value)))
            for path, values in table.items()
            for value in values
        ),
        *(case(entry, f"lacks {path[-1]}", f"{path}", holding(lacking(sound, path))) for path in keys),
    ]


NAMES = without(JUNK, "text", "megabytes of text") | {
    "None": None,
    "True": True,
    "no text": "",
    "a path": "../tiny-gpt2/config",
    "a path from the root": "/etc/hostname",
    "a name with a NUL": "a\0b",
}
CASES = [
    *values_of("load, name", "is no name of a record", lambda _, bad: load(bad), NAMES, RecordError),
    *values_of(
        "load, name",
        "is missing|cannot be read",
        lambda _, bad: load(bad),
        {name[:20]: name for name in ("nope", ".", "..", "a" * 300, "faults_cpu.json", "*", "\\udcff")},
        RecordError,
    ),
    *(
        row
        for entry, call in (("published_figures", published_figures), ("load_gpu_tests", load_gpu_tests))
        for row in values_of(
            f"{entry}, path",
            "is no path: hand over a pathlib.Path",
            lambda _, bad, call=call: call(bad),
            {"text": "x", "a number": 5, "None": None, "a list": []},
            RecordError,
        )
    ),
    *values_of(
        "load_all, kind",
        "is no kind of record; there are attention, ",
        lambda _, bad: load_all(bad),
        {"another word": "x", "a path": "../ladder", "a number": 5, "None": None, "a list": []},
        RecordError,
    ),
    *values_of(
        "headline",
        "nothing was published",
        lambda _, bad: headline(bad),
        {"None": None, "no rung": "99", "a list": [1], "a number": 1},
        RecordError,
    ),
    *(
        case(entry, r"mine|\[\]|no posts|post", what, holding(content))
        for entry in READERS
        for what, content in CONTENTS.items()
    ),
    *(case(entry, "mine.json is ", what, make) for entry in READERS for what, make in NO_FILES.items()),
    *broken("load", SOUND, RECORD),
    *broken("published_figures", POSTS, POST),
    *broken("load_gpu_tests", GPU_TESTS, TESTS),
]
