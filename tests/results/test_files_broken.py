"""Records and published figures that somebody else broke: an error names the file and what is wrong."""

import json
import os
from functools import cache
from pathlib import Path

import pytest
from helpers import MEASURED

from labkit.checks import shown
from labkit.errors import LabkitError, RecordError
from labkit.paths import RESULTS
from labkit.results import KINDS, Record, files, load, load_all, published_figures, table
from labkit.results.published import PUBLISHED

SMALLEST = {  # a shipped record of each kind
    "attention": "attention_h100",
    "comparison": "comparison_attention_h100",
    "cost_card": "cost_cards_h100",
    "decode_kernels": "idle_h100",
    "faults": "faults_cpu",
    "flood": "flood_fifo_cpu",
    "fuzz": "fuzz_cpu",
    "host_time": "host_time_ragged_h100",
    "kv_append": "kv_append_h100",
    "ladder": "ladder_single_h100",
    "loads": "loads_cpu",
    "peers": "peers_single_h100",
    "profile": "profile_rung02_h100",
    "sampling": "sampling_h200",
    "scheduler": "scheduler_036_rung02_h100",
    "streaming": "streaming_064_rung05_h100",
    "tiles": "tiles_medium_h200",
}
NAN, INF, DEEP = float("nan"), float("inf"), 100_000


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    return tmp_path


def shipped(kind: str) -> dict:
    """A record of that kind with two samples, the same, and of a profile few operators."""
    raw = parsed(SMALLEST[kind])
    if kind == "profile":
        raw["samples"][0]["profile"].update(operators=[["aten::add", 1.0, 0.5]])
    return {**raw, "samples": raw["samples"][:1] * 2}


@cache
def parsed(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def refused(call, *args: object) -> str:
    with pytest.raises(RecordError) as error:
        call(*args)
    assert isinstance(error.value, LabkitError) and isinstance(error.value, ValueError)
    assert len(str(error.value)) < 1000
    return str(error.value)


def test_every_kind_has_a_record_below():
    assert set(SMALLEST) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_broken_below_is_sound_before(folder, kind):
    (folder / "sound.json").write_text(json.dumps(shipped(kind)))
    assert json.loads(json.dumps(load("sound").to_dict())) == shipped(kind)
    assert len(table(kind)) == 2


# --- files -----------------------------------------------------------------------------------------

SOUND = json.dumps(shipped("scheduler")).encode()
BAD_FILES = {
    "empty": (b"", "not valid JSON"),
    "cut": (SOUND[:8000], "not valid JSON"),
    "cut in its kind": (b'{"kind": "', "not valid JSON"),
    "cut after its kind": (b'{"kind": "scheduler", ', "not valid JSON"),
    "with a tail": (SOUND + b"]", "not valid JSON"),
    "not UTF-8": (b"\xff" + SOUND, "not valid JSON: 'utf-8'"),
    "not UTF-8 inside": (SOUND.replace(b"Hello", b"\xff"), "not valid JSON: 'utf-8'"),
    "UTF-16": (SOUND.decode().encode("utf-16"), "not valid JSON"),
    "with a byte order mark": (b"\xef\xbb\xbf" + SOUND, "not valid JSON: Unexpected UTF-8 BOM"),
    "nested": (b"[" * DEEP + b"]" * DEEP, "nested too deep"),
    "nested in a key": (b'{"kind": ' + b"[" * DEEP, "nested too deep"),
    "nested after its kind": (b'{"kind": "scheduler", "host": ' + b'{"a":' * DEEP, "nested too deep"),
    "a key twice": (SOUND[:-1] + b', "host": {}}', "'host' is given twice"),
    "a list": (b"[]", "must be an object, not []"),
    "null": (b"null", "must be an object, not None"),
    "text": (b'"scheduler"', "must be an object, not 'scheduler'"),
    "a number": (b"5", "must be an object, not 5"),
    "NaN": (b"NaN", "must be an object, not nan"),
    "true": (b"true", "must be an object, not True"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
@pytest.mark.parametrize("read", [lambda: load("mine"), lambda: load_all("scheduler")], ids="1+")
def test_a_file_that_holds_no_record_is_named(folder, content, message, read):
    (folder / "good.json").write_bytes(SOUND)
    (folder / "mine.json").write_bytes(content)
    said = refused(read)
    assert "mine" in said and message in said


NO_FILES = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("read", [lambda: load("mine"), lambda: load_all("scheduler")], ids="1+")
def test_what_is_no_file_is_named_and_not_opened(folder, make, read):
    make(folder / "mine.json")
    assert refused(read).startswith("mine.json is ")


@pytest.mark.parametrize("read", [lambda: load("mine"), lambda: load_all("scheduler")], ids="1+")
def test_a_file_without_end_is_not_read_into_memory(folder, read):
    with open(folder / "mine.json", "wb") as file:
        file.truncate(2 << 30)  # it takes no room on the disk
    assert "mine.json is larger than 256 MiB" in refused(read)


NAMES = ["../tiny-gpt2/config", "/etc/hostname", "a/b", "", "a\0b", None, 5, True, [], b"ladder", {"a": 1}]
UNKNOWN = ["nope", "None", ".", "..", "a" * 300, "ladder_036_h100.json", "\udcff", "*"]


@pytest.mark.parametrize("name", NAMES, ids=shown)
def test_what_is_no_name_of_a_record_is_refused(name):
    assert "is no name of a record" in refused(load, name)


@pytest.mark.parametrize("name", UNKNOWN, ids=shown)
def test_a_record_that_is_not_there_is_said_not_to_be(name):
    said = refused(load, name)
    assert "is missing" in said or "cannot be read" in said


def test_a_file_beside_the_records_that_is_none_is_passed_over(folder):
    (folder / "trace.json").write_text('{"traceEvents": []}')
    (folder / "good.json").write_bytes(SOUND)
    assert list(load_all("scheduler")) == ["good"]


# --- what a record holds ---------------------------------------------------------------------------

TEXT, NUMBER, LIST, OBJECT = "x", 5, [1], {"a": 1}
NO_TEXT = [None, NUMBER, True, LIST, OBJECT]
NO_NUMBER = [None, TEXT, True, LIST, OBJECT, NAN, INF, -INF, 10**400]
NO_TIME = [*NO_NUMBER, -1.0]
NO_COUNT = [*NO_TIME, 0.5]
NO_LIST = [None, TEXT, NUMBER, OBJECT]
NO_OBJECT = [None, TEXT, NUMBER, LIST]
BAD_TOP = [
    *(((key,), value) for key in ("kind", "date", "commit", "command") for value in NO_TEXT),
    *((("kind",), value) for value in ("", "guess", "Scheduler")),
    *((("host",), value) for value in NO_OBJECT),
    *((("host", key), value) for key in ("device", "cpu", "python", "torch") for value in NO_TEXT),
    *((("host", key), value) for key in ("driver", "triton") for value in (NUMBER, LIST)),
    *((("host", "cpu_cores"), value) for value in (TEXT, -1, 1.5, True)),
    *((("bandwidth",), value) for value in [*NO_TIME, 0]),
    *((("settings",), value) for value in NO_OBJECT),
    *((("settings", "model"), value) for value in NO_TEXT),
    *((("settings", "num_requests"), value) for value in NO_COUNT),
    *((("samples",), value) for value in [*NO_LIST, [], [1], [None], ["x"], [[]]]),
]


def breakage(raw: dict, path: tuple, value: object) -> dict:
    """A copy of `raw` with the value at `path` replaced."""
    copy = json.loads(json.dumps(raw))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def lacking(raw: dict, path: tuple) -> dict:
    copy = json.loads(json.dumps(raw))
    place = copy
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return copy


def assert_refused_with(folder: Path, broken: dict, key: object) -> None:
    (folder / "mine.json").write_text(json.dumps(broken))
    said = refused(load, "mine")
    assert said.startswith("record mine") and str(key) in said


@pytest.mark.parametrize(("path", "value"), BAD_TOP, ids=shown)
def test_a_wrong_value_is_named_by_its_key(folder, path, value):
    assert_refused_with(folder, breakage(shipped("scheduler"), path, value), path[-1])


TOP = [(key,) for key in ("kind", "date", "commit", "command", "host", "bandwidth", "settings", "samples")]
HOST = [("host", key) for key in ("device", "driver", "cpu", "cpu_cores", "python", "torch", "triton")]


@pytest.mark.parametrize("path", [*TOP, *HOST, ("settings", "model"), ("settings", "max_batch_size")])
def test_a_key_that_is_missing_is_named(folder, path):
    assert_refused_with(folder, lacking(shipped("scheduler"), path), f"lacks {path[-1]}")


def leaves(shape: object, path: tuple = ()):
    """Every key of a sample that is checked, with a path to it."""
    if isinstance(shape, dict) and str not in shape:
        for key, of_key in shape.items():
            yield (*path, key)
            yield from leaves(of_key, (*path, key))


KEYS = [(kind, path) for kind, shape in KINDS.items() for path in leaves(shape.SAMPLE.SHAPE)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), KEYS, ids=shown)
def test_a_key_that_the_second_sample_lacks_is_named(folder, kind, path):
    broken = lacking(shipped(kind), ("samples", 1, *path))
    assert_refused_with(folder, broken, f"lacks {path[-1]} in sample 1")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), KEYS, ids=shown)
@pytest.mark.parametrize("value", [True, -INF, {"a": None}, [None]], ids=repr)
def test_a_wrong_value_in_a_sample_is_named(folder, kind, path, value):
    """Values that no key allows, whatever it holds."""
    assert_refused_with(folder, breakage(shipped(kind), ("samples", 1, *path), value), f"sample 1.{path[0]}")


BAD_RUNS = [
    *(("decode_seconds", value) for value in NO_TIME),
    *(("decoded_tokens", value) for value in NO_COUNT),
    *(("limit_seconds", value) for value in NO_TIME),
    *(("seconds", value) for value in [*NO_TIME, 0]),
    *(("rung", value) for value in NO_TEXT),
    *(
        ("append_paths", value)
        for value in [*NO_OBJECT, {"in_place": "x"}, {"in_place": None}, {"in_place": -1}]
    ),
    *(("ttft", value) for value in [*NO_LIST, ["x"], [None], [NAN], [-1]]),
    *(("new_tokens", value) for value in [*NO_LIST, ["x"], [1.5], [None]]),
    *(("itl_us", value) for value in [*NO_LIST, [[1]], [["x", [1]]], [[1, 5]], [[1, ["x"]]], [[1, [1], 2]]]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), BAD_RUNS, ids=shown)
@pytest.mark.parametrize("kind", ["ladder", "scheduler", "streaming"])
def test_a_wrong_number_of_a_run_is_named(folder, kind, key, value):
    assert_refused_with(folder, breakage(shipped(kind), ("samples", 1, key), value), f"sample 1.{key}")


BAD_SPANS = [[1], [[]], [["a", 1]], [["a", "b", 1]], [[1, 1, 1]], [["a", 1, 1, 1]], [["a", 1, NAN]], "abc"]


@pytest.mark.parametrize("value", BAD_SPANS, ids=repr)
@pytest.mark.parametrize("lane", ["ranges", "operators", "kernels"])
def test_a_wrong_span_of_a_profile_is_named(folder, lane, value):
    broken = breakage(shipped("profile"), ("samples", 0, "profile", lane), value)
    assert_refused_with(folder, broken, f"sample 0.profile.{lane}")


@pytest.mark.parametrize("key", ["step_seconds", "tables_seconds", "append_seconds"])
def test_a_host_time_of_no_steps_is_refused(folder, key):
    broken = breakage(shipped("host_time"), ("samples", 1, key), [])
    assert_refused_with(folder, broken, f"sample 1.{key} must be a list that is not empty, not []")


def test_every_sample_is_checked(folder):
    broken = breakage(shipped("scheduler"), ("samples", 1, "rung"), None)
    assert_refused_with(folder, broken, "sample 1.rung must be text, not None")


@pytest.mark.slow
@pytest.mark.parametrize("path", MEASURED, ids=lambda p: p.stem)
def test_every_shipped_record_is_what_the_readers_expect(path):
    assert load(path.stem).samples


# --- readers ---------------------------------------------------------------------------------------


def loaded(raw: dict) -> Record:
    return KINDS[raw["kind"]].from_dict(raw)


@pytest.mark.parametrize(("reader", "key"), [("rates", "decode_seconds"), ("limit", "limit_seconds")])
def test_a_run_that_decoded_nothing_has_no_rate(reader, key):
    record = loaded(breakage(shipped("scheduler"), ("samples", 1, key), 0.0))
    assert "decoded nothing" in refused(lambda: getattr(record, reader))


@pytest.mark.slow
def test_a_rung_that_a_record_does_not_have_is_refused_with_those_that_it_has():
    ladder, host = load("ladder_036_h100"), load("host_time_h100")
    assert "no runs of rung '99'; it has 00, 01" in refused(ladder.comparison, "00", "99")
    assert "no runs of rung '99'; it has 00, 01" in refused(host.comparison, "99", "00", 64)
    assert "no runs of rung 00 with batch size 63" in refused(host.comparison, "00", "01", 63)
    assert "no runs of rung '99'; it has 00, 01" in refused(ladder.step_us, "99")
    assert "no runs of 'vllm'; it has labkit 10" in refused(load("peers_036_h100").rate, "vllm")
    assert "no step of rung 10 at B = 3" in refused(load("idle_h100").step, "10", 3)


# --- published figures -----------------------------------------------------------------------------

POSTS = json.loads(PUBLISHED.read_text(encoding="utf-8"))
BAD_PUBLISHED = {
    "empty": (b"", "not valid JSON"),
    "cut": (PUBLISHED.read_bytes()[:3000], "not valid JSON"),
    "not UTF-8": (b"\xff", "not valid JSON"),
    "with a byte order mark": (b"\xef\xbb\xbf[]", "not valid JSON"),
    "nested": (b"[" * DEEP, "nested too deep"),
    "an object": (b"{}", "must be a list, not {}"),
    "null": (b"null", "must be a list, not None"),
    "text": (b'"x"', "must be a list, not 'x'"),
    "no posts": (b"[]", "must be a list that is not empty"),
    "a number for a post": (b"[1]", "[0] must be an object, not 1"),
    "null for a post": (b"[null]", "[0] must be an object, not None"),
    "a list for a post": (b"[[]]", "[0] must be an object, not []"),
    "an empty post": (b"[{}]", "post ? lacks write_up"),
}


@pytest.mark.parametrize(("content", "message"), BAD_PUBLISHED.values(), ids=BAD_PUBLISHED)
def test_a_file_that_holds_no_published_figures_is_named(tmp_path, content, message):
    (tmp_path / "published.json").write_bytes(content)
    said = refused(published_figures, tmp_path / "published.json")
    assert message in said and ("published.json" in said or "post ?" in said)


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_published_figures_that_are_no_file_are_named_and_not_opened(tmp_path, make):
    make(tmp_path / "published.json")
    assert refused(published_figures, tmp_path / "published.json").startswith("published.json is ")


BAD_POSTS = [
    *(((0, "write_up"), value) for value in [None, 36, "x", "", "3.6", "-1", [], True]),
    *(((0, key), value) for key in ("workload", "hardware", "source") for value in NO_TEXT),
    *(
        ((0, key), value)
        for key in ("rung_before", "rung_after", "command")
        for value in (NUMBER, LIST, OBJECT)
    ),
    *(((0, "figures"), value) for value in [*NO_LIST, [1], [None], ["x"]]),
    *(((0, "figures", 0, key), v) for key in ("metric", "statistic", "unit") for v in (None, NUMBER, LIST)),
    *(((0, "figures", 0, "higher_is_better"), value) for value in [None, 0, 1, 5, "true", []]),
    *(((0, "figures", 0, side), value) for side in ("before", "after") for value in [*NO_TIME, 0]),
    *(((0, "figures", 0, "before_runs"), value) for value in ["x", 5, [], ["x"], [None], [NAN], {}]),
]


@pytest.mark.parametrize(("path", "value"), BAD_POSTS, ids=shown)
def test_a_wrong_value_of_a_post_is_named(tmp_path, path, value):
    (tmp_path / "published.json").write_text(json.dumps(breakage(POSTS, path, value)))
    said = refused(published_figures, tmp_path / "published.json")
    assert said.startswith("post ") and (path[-1] in said or path[1] in said)


@pytest.mark.parametrize(
    "path", [*((0, key) for key in POSTS[0]), *((0, "figures", 0, k) for k in POSTS[0]["figures"][0])]
)
def test_a_key_that_a_post_lacks_is_named(tmp_path, path):
    (tmp_path / "published.json").write_text(json.dumps(lacking(POSTS, path)))
    assert f"lacks {path[-1]}" in refused(published_figures, tmp_path / "published.json")
