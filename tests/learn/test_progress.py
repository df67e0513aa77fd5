"""Progress: what was passed and guessed survives a new kernel, and a broken file loses nothing silently."""

import pytest

from labkit import paths
from labkit.errors import OptionError
from labkit.learn import Prediction
from labkit.learn.progress import Guess, LessonProgress, note_gate, note_guess, progress, progress_file


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MINE", tmp_path / "mine")


def test_nothing_is_done_before_something_is():
    assert progress() == {} and not progress_file().exists()


def test_what_was_done_is_read_back_by_lesson():
    note_gate("02", "kv_append")
    note_guess("01", "Rows", 5, 12.02)
    note_gate("02", "kv_append")
    note_guess("01", "Rows", 10.0, 12.02)
    assert progress() == {
        "01": LessonProgress((), {"Rows": Guess(10.0, 12.02)}),
        "02": LessonProgress(("kv_append",), {}),
    }


def test_a_scored_guess_is_noted_and_an_open_question_is_not():
    Prediction("Calls", "calls", lesson="03").score(48)
    Prediction("Calls", "calls", "many", lesson="03").score(48)
    Prediction("Calls", "calls", 40).score(48)
    assert progress() == {}
    Prediction("Calls", "calls", 40, lesson="03").score(48)
    assert progress() == {"03": LessonProgress((), {"Calls": Guess(40.0, 48.0)})}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"01": 3}', '{"01": {"gates": [], "guesses": {"a": {"guess": 1}}}}'],
)
def test_a_broken_file_is_named_kept_and_in_nobodys_way(text):
    paths.MINE.mkdir()
    progress_file().write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=r"progress.json in mine/ cannot be read .*; delete it"):
        progress()
    with pytest.warns(UserWarning, match="your progress is not stored: progress.json"):
        note_gate("01", "block_tables")
    assert progress_file().read_text(encoding="utf-8") == text


def test_a_folder_that_cannot_be_written_to_fails_no_cell(tmp_path):
    paths.MINE.write_text("in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match="your progress is not stored"):
        note_gate("01", "block_tables")
