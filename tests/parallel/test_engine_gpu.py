"""Two and four ranks, each on a GPU: sums through the GPUs' memory and by NCCL. One start for all cases."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_cases import ON_GPUS, PARAMS, SETTINGS, check_late_and_killed, flood, outcome, seen_by_ranks

from labkit import LADDER, InferenceEngine, load_model

pytestmark = pytest.mark.cuda
GPUS = torch.cuda.device_count()
SIZES = [
    pytest.param(size, marks=pytest.mark.skipif(size > GPUS, reason=f"needs {size} GPUs")) for size in (2, 4)
]


@pytest.fixture(scope="module", params=SIZES)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_ranks("gpus", tmp_path_factory.mktemp("gpus"), "cuda", request.param)


@pytest.mark.parametrize("case", [*ON_GPUS, "wide"])
def test_several_gpus_make_the_tokens_of_one(seen: list[dict[str, Any]], case: str):
    options = LADDER[case].options if case in ON_GPUS else None
    engine = InferenceEngine(load_model("random:small-llama"), options, device="cuda:0", **SETTINGS)
    expected = outcome(engine)
    leader, *followers = (each[case] for each in seen)
    assert leader == expected
    assert all(follower["counters"] == expected["counters"] for follower in followers)


def test_a_flood_with_sums_by_nccl(seen: list[dict[str, Any]]):
    expected = flood(InferenceEngine(load_model("random:small-llama"), device="cuda:0", **SETTINGS))
    leader, *followers = (each["NCCL"] for each in seen)
    assert leader == expected
    assert all(follower["counters"] == expected["counters"] for follower in followers)


def test_a_model_too_large_for_one_gpu_runs_on_several(seen: list[dict[str, Any]]):
    leader, *followers = (each["budget"] for each in seen)
    assert leader == ["too large for one", *(params.max_new_tokens for params in PARAMS)]
    assert all(follower == ["too large for one"] for follower in followers)


def test_no_gpu_is_waited_for_longer_than_the_timeout(seen: list[dict[str, Any]]):
    for each in (rank["late"] for rank in seen):
        assert each["error"] == "rank 1 did not come within 3 seconds"
        assert each["seconds"] < 20


@pytest.mark.parametrize("size", SIZES)
def test_none_outlives_a_rank_that_is_killed(size: int, tmp_path: Path):
    check_late_and_killed(tmp_path, "cuda", size)
