"""Two ranks on two GPUs: NCCL, memory of the other GPU, and graphs of both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_cases import ON_GPUS, PARAMS, SETTINGS, flood, model_of, outcome, seen_by_ranks

from labkit import LADDER, InferenceEngine, load_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_ranks("tokens", tmp_path_factory.mktemp("tokens"), "cuda")


@pytest.mark.parametrize(
    ("name", "rung"), [(name, rung) for name, rungs in ON_GPUS.items() for rung in rungs]
)
def test_two_gpus_make_the_tokens_of_one(seen: list[dict[str, Any]], name: str, rung: str):
    leader, follower = (each[f"{name} {rung}"] for each in seen)
    expected = outcome(InferenceEngine(model_of(name), LADDER[rung].options, device="cuda:0", **SETTINGS))
    assert leader == expected
    assert follower["counters"] == expected["counters"]


def test_a_flood_with_sums_by_nccl(seen: list[dict[str, Any]]):
    expected = flood(InferenceEngine(load_model("random:small-llama"), device="cuda:0", **SETTINGS))
    assert seen[0]["flood"] == expected
    assert seen[1]["flood"]["counters"] == expected["counters"]


def test_what_one_rank_raises_ends_the_engine_on_all(seen: list[dict[str, Any]]):
    for each in (rank["raises"] for rank in seen):
        assert each["error"] == "rank 1 failed: Injected: planted here"
        assert each["seconds"] < 20


def test_no_gpu_is_waited_for_longer_than_the_timeout(tmp_path: Path):
    for each in seen_by_ranks("late", tmp_path, "cuda"):
        assert each["error"] == "rank 1 did not come within 2 seconds"
        assert each["seconds"] < 20


def test_a_model_too_large_for_one_gpu_runs_on_two(tmp_path: Path):
    leader, follower = seen_by_ranks("budget", tmp_path, "cuda")
    assert leader == {"one": "too large", "tokens": [params.max_new_tokens for params in PARAMS]}
    assert follower == {"one": "too large", "tokens": []}
