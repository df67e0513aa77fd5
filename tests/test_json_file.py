"""JSON that others wrote: what can be read is read, all else is one ValueError that names the file."""

import os

import pytest

from labkit.json_file import check_regular, parse_json, read_bytes, read_json

DEEP = 100_000


@pytest.mark.parametrize(
    ("raw", "value"),
    [(b'{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}), ('"ü"'.encode(), "ü"), (b"3", 3), (b"{}", {})],
)
def test_a_file_is_its_value(tmp_path, raw, value):
    (tmp_path / "some.json").write_bytes(raw)
    assert read_json(tmp_path / "some.json") == value
    assert read_bytes(tmp_path / "some.json") == raw


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


def a_folder(path):
    path.mkdir()


def a_pipe(path):
    os.mkfifo(path)


def a_link_to_nothing(path):
    path.symlink_to("nowhere")


def a_link_to_itself(path):
    path.symlink_to(path)


def nothing(path):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nothing, "^some.json is missing$"),
        (a_folder, "^some.json is no regular file$"),
        (a_pipe, "^some.json is no regular file$"),
        (a_link_to_nothing, "^some.json is a link to nothing$"),
        (a_link_to_itself, "some.json"),
    ],
)
def test_what_is_no_file_is_refused_without_opening_it(tmp_path, make, message):
    path = tmp_path / "some.json"
    make(path)
    for call in (check_regular, read_bytes, read_json):
        with pytest.raises(ValueError, match=message):
            call(path)


def test_a_link_to_a_file_is_that_file(tmp_path):
    (tmp_path / "some.json").write_text("[1]")
    (tmp_path / "link.json").symlink_to(tmp_path / "some.json")
    assert read_json(tmp_path / "link.json") == [1]


def test_a_name_that_is_too_long_is_shown_short(tmp_path):
    with pytest.raises(ValueError) as refused:
        check_regular(tmp_path / ("a" * 5000))
    assert len(str(refused.value)) < 200
