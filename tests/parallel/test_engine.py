"""Several ranks, on the CPU by gloo: the tokens of one process, and an end for all when one fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parallel_cases import (
    PARAMS,
    PROMPTS,
    RUNGS,
    SETTINGS,
    check_late_and_killed,
    flood,
    model_of,
    outcome,
    seen_by_ranks,
)

from labkit import LADDER, InferenceEngine, load_model
from labkit.engine.guard import BROKEN
from labkit.errors import OptionError
from labkit.ladder import FINISHED
from labkit.parallel import ParallelEngine, TorchRanks
from labkit.parallel.__main__ import make_parser
from labkit.parallel.shards import head_groups

pytestmark = pytest.mark.slow


def test_the_command_runs_the_finished_rung_unless_another_is_asked_for():
    assert make_parser().parse_args([]).rung == FINISHED.number


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By each of two ranks, in one start for all cases."""
    return seen_by_ranks("tokens", tmp_path_factory.mktemp("tokens"))


def whole_engine(name: str, rung: str) -> InferenceEngine:
    return InferenceEngine(model_of(name), LADDER[rung].options, device="cpu", **SETTINGS)


@pytest.mark.parametrize(("name", "rung"), [(name, rung) for name, rungs in RUNGS.items() for rung in rungs])
def test_two_ranks_make_the_tokens_of_one_process(seen: list[dict[str, Any]], name: str, rung: str):
    leader, follower = (each[f"{name} {rung}"] for each in seen)
    expected = outcome(whole_engine(name, rung))
    assert leader == expected
    assert follower == {"counters": expected["counters"], "free_blocks": expected["free_blocks"]}


def test_a_flood_of_requests_that_come_and_leave(seen: list[dict[str, Any]]):
    leader, follower = (each["flood"] for each in seen)
    expected = flood(InferenceEngine(load_model("random:small-llama"), device="cpu", **SETTINGS))
    assert leader == expected
    counters = leader["counters"]
    assert min(counters["preemptions"], counters["reused_tokens"], counters["finished"]["cancelled"]) > 0
    assert follower["counters"] == expected["counters"]


def test_a_server_on_the_first_rank_has_all_ranks_serve(seen: list[dict[str, Any]]):
    leader, follower = (each["served"] for each in seen)
    (expected,) = whole_engine("random:small", "14").generate(PROMPTS[1:2], PARAMS[1])
    assert leader["tokens"] == list(expected.token_ids)
    assert leader["counters"]["finished"] == {"cancelled": 1, "length": 1}
    assert follower["counters"] == leader["counters"]


# --- faults ----------------------------------------------------------------------------------------------


def test_what_one_rank_raises_ends_the_engine_on_all(seen: list[dict[str, Any]]):
    for each in (rank["raises"] for rank in seen):
        assert each["error"] == "rank 1 failed: Injected: planted here"
        assert each["then"] == BROKEN
        assert each["seconds"] < 20


def test_no_rank_waits_longer_than_the_timeout_and_none_outlives_one_that_is_killed(tmp_path: Path):
    """Rank 1 sleeps, and is killed then."""
    check_late_and_killed(tmp_path, "cpu", size=4)


# --- what is refused -------------------------------------------------------------------------------------


def test_ranks_need_torchrun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(OptionError, match="start it by torchrun --nproc-per-node N"):
        TorchRanks("cpu")


def test_arguments_of_another_kind_are_refused():
    with pytest.raises(OptionError, match=r"ranks must be TorchRanks\(\), made once in each process, not"):
        ParallelEngine(load_model("random:small"), None)
    with pytest.raises(OptionError, match="device"):
        ParallelEngine(load_model("random:small"), None, device="cpu")


def test_drafts_on_several_ranks_are_refused():
    drafting = replace(LADDER["14"].options, speculation="ngrams")
    with pytest.raises(OptionError, match="drafts are not verified on several ranks"):
        ParallelEngine(load_model("random:small"), TorchRanks.__new__(TorchRanks), drafting)


@pytest.mark.parametrize(
    ("heads", "size", "groups"), [((32, 8), 2, 8), ((9, 3), 2, 3), ((4, 2), 4, 4), ((25, 25), 4, 25)]
)
def test_heads_are_cut_in_groups(heads: tuple[int, int], size: int, groups: int):
    assert head_groups(*heads, size) == groups


@pytest.mark.parametrize(
    ("heads", "size"), [((9, 3), 4), ((6, 2), 4), ((2, 2), 3), ((4, 4), 3), ((12, 12), 5), ((25, 25), 8)]
)
def test_heads_that_cannot_be_shared_are_refused(heads: tuple[int, int], size: int):
    with pytest.raises(OptionError, match=f"cannot be cut for {size} processes"):
        head_groups(*heads, size)
