"""Lesson 02: its caches to read, and the figure of the paths that tokens take."""

import pytest
import torch

from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockManager
from labkit.learn.lesson_02 import (
    CopiesAfterTheWrite,
    append_in_one_call,
    append_one_by_one,
    crossover,
    readable_manager,
    readable_session,
    reads,
    session_table,
)
from labkit.results import HostTime

# --- the caches to read ---------------------------------------------------------------------------------


def sharers(kind=KVBlockManager):
    first = readable_session(readable_manager(3, kind), [1, 2])
    return [first, first.fork()]


def test_a_batch_of_sharers_is_written_like_one_by_one():
    single, fast, batched = sharers(), sharers(), sharers()
    append_one_by_one(single, [10, 20])
    append_in_one_call(fast, [10, 20], method="append_token_batch_fast_path")
    append_in_one_call(batched, [10, 20])
    for sessions in (single, fast, batched):
        assert [reads(s) for s in sessions] == [[1, 2, 10], [1, 2, 20]]
        sessions[0].kv_manager.check_integrity(sessions)
        assert torch.equal(sessions[0].kv_manager.k_cache, single[0].kv_manager.k_cache)
    assert batched[0].kv_manager.append_paths == {"copy_on_write": 1, "in_place": 1, "indexed": 1}


def test_copies_after_the_write_lose_a_token_and_no_book_tells():
    sessions = sharers(CopiesAfterTheWrite)
    append_in_one_call(sessions, [10, 20])
    assert [reads(s) for s in sessions] == [[1, 2, 20], [1, 2, 20]]
    sessions[0].kv_manager.check_integrity(sessions)


def test_copies_after_the_write_lose_the_copiers_token_with_nobody_beside_it():
    first, second = sharers(CopiesAfterTheWrite)
    append_in_one_call([second], [20])
    assert reads(second) == [1, 2, 0] and reads(first) == [1, 2]


@pytest.mark.parametrize(
    ("method", "booked"), [("append_token_batch", [3, 4, 4]), ("append_token_batch_fast_path", [4, 5, 4])]
)
def test_the_books_after_a_pool_ran_out_and_after_rolling_back(method, booked):
    manager = readable_manager(num_blocks=4)
    sessions = [readable_session(manager, prompt) for prompt in ([1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])]
    with pytest.raises(OutOfBlocksError):
        append_in_one_call(sessions, [91, 92, 93], method)
    names = dict(zip("ABC", sessions, strict=True))
    table = session_table(names)
    assert table["tokens booked"].tolist() == booked
    assert table["tokens the session counts"].tolist() == [3, 4, 4]
    assert table["blocks"].tolist() == ["[0]", "[1, 3]", "[2]"]
    for session in sessions:
        session.roll_back()
    manager.check_integrity(sessions)
    assert manager.num_free_blocks == 1
    assert session_table(names)["reads"].tolist() == ["[1, 2, 3]", "[4, 5, 6, 7]", "[8, 9, 10, 11]"]


# --- the crossover --------------------------------------------------------------------------------------


def host_times(*steps_us):
    return [HostTime(size, 12, (1e-6 * us,) * 3, (0.0,) * 3, (0.0,) * 3) for size, us in steps_us]


@pytest.mark.parametrize(
    ("after", "meets"),
    [
        (host_times((1, 300), (9, 300), (17, 300)), 5.0),  # 100 + 50 (B - 1), 300 from the start
        (host_times((17, 300), (9, 300), (1, 300)), 5.0),
        (host_times((1, 100), (9, 100), (17, 100)), None),  # never dearer
        (host_times((1, 200), (9, 600), (17, 2000)), None),  # always dearer
    ],
    ids=["meets", "in any order", "cheaper from the start", "dearer to the end"],
)
def test_crossover_is_where_the_lines_meet(after, meets):
    before = host_times((1, 100), (9, 500), (17, 900))
    assert crossover(before, after) == (meets if meets is None else pytest.approx(meets))
