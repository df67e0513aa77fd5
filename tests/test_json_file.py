"""JSON that others wrote: what can be read is read, all else is one ValueError that names the file."""

import os

import pytest

from labkit.json_file import check_regular, parse_json, read_bytes, read_json

DEEP = 100_000


def test_a_file_or_a_link_to_one_is_its_value(tmp_path):
    raw = '{"a": [1, 2.5, null, "ü"]}'.encode()
    (tmp_path / "some.json").write_bytes(raw)
    (tmp_path / "link.json").symlink_to(tmp_path / "some.json")
    assert read_bytes(tmp_path / "some.json") == raw
    for name in ("some.json", "link.json"):
        assert read_json(tmp_path / name) == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "some.json is not valid JSON: Expecting value"),
        (b"{", "some.json is not valid JSON"),
        (b'"\xff"', "some.json is not valid JSON: .* can't decode"),
        (b"[" * DEEP, "some.json is nested too deep"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "some.json is not valid JSON: 'c' is given twice"),
    ],
    ids=["empty", "cut off", "no UTF-8", "deep", "a key twice"],
)
def test_what_is_no_json_is_named_by_its_file(tmp_path, raw, message):
    (tmp_path / "some.json").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "some.json")
    with pytest.raises(ValueError, match=message):
        parse_json("some.json", raw)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "^some.json is missing$"),
        (os.mkfifo, "^some.json is no regular file$"),
        (lambda path: path.symlink_to("nowhere"), "^some.json is a link to nothing$"),
        (lambda path: path.symlink_to(path), "some.json"),
    ],
)
def test_what_is_no_file_is_refused_without_opening_it(tmp_path, make, message):
    path = tmp_path / "some.json"
    make(path)
    for call in (check_regular, read_bytes, read_json):
        with pytest.raises(ValueError, match=message):
            call(path)


def test_a_name_that_is_too_long_is_shown_short(tmp_path):
    with pytest.raises(ValueError) as refused:
        check_regular(tmp_path / ("a" * 5000))
    assert len(str(refused.value)) < 200
