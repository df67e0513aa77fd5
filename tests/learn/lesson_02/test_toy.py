"""Lesson 02's caches to read: what is read after each way to append, and the pool moment by moment."""

import pytest
import torch

from labkit.errors import OutOfBlocksError
from labkit.kvcache import AppendBatched, AppendBatchedFastPath, AppendPerToken
from labkit.learn.lesson_02.toy import (
    append_step,
    moments_of,
    readable_manager,
    readable_session,
    reads,
    session_table,
    two_sharers,
)


def test_a_batch_of_sharers_is_written_like_one_by_one():
    single = two_sharers()
    append_step(AppendPerToken, single, [10, 20])
    for part in (AppendPerToken, AppendBatchedFastPath, AppendBatched):
        sessions = two_sharers()
        append_step(part, sessions, [10, 20])
        assert [reads(s) for s in sessions] == [[1, 2, 10], [1, 2, 20]]
        sessions[0].kv_manager.check_integrity(sessions)
        assert torch.equal(sessions[0].kv_manager.k_cache, single[0].kv_manager.k_cache)
    assert sessions[0].kv_manager.append_paths == {"copy_on_write": 1, "in_place": 1, "indexed": 1}


@pytest.mark.parametrize(
    ("part", "counted"), [(AppendBatched, [3, 4, 4]), (AppendBatchedFastPath, [4, 5, 4])]
)
def test_the_records_after_a_pool_ran_out_and_after_rolling_back(part, counted):
    manager = readable_manager(num_blocks=4)
    sessions = [readable_session(manager, prompt) for prompt in ([1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])]
    with pytest.raises(OutOfBlocksError):
        append_step(part, sessions, [91, 92, 93])
    names = dict(zip("ABC", sessions, strict=True))
    table = session_table(names)
    assert table["tokens in the records"].tolist() == counted
    assert table["tokens the session counts"].tolist() == [3, 4, 4]
    assert table["blocks"].tolist() == ["[0]", "[1, 3]", "[2]"]
    for session in sessions:
        session.roll_back()
    manager.check_integrity(sessions)
    assert manager.num_free_blocks == 1
    assert session_table(names)["reads"].tolist() == ["[1, 2, 3]", "[4, 5, 6, 7]", "[8, 9, 10, 11]"]


def test_the_pool_is_seen_on_both_sides_of_the_one_write():
    before, ready, written, end = moments_of(AppendBatched)
    assert before == ("before", ((1, 2, 0, 0), (0, 0, 0, 0)), ("AB", ""))
    assert ready == ("blocks are ready", ((1, 2, 0, 0), (1, 2, 0, 0)), ("B", "A"))
    assert written == ("after the write", ((1, 2, 20, 0), (1, 2, 10, 0)), ("B", "A"))
    assert end == written._replace(title="at the end")


def test_tokens_that_are_written_alone_go_by_no_batched_write():
    assert [frame.title for frame in moments_of(AppendPerToken)] == ["before", "at the end"]
