"""Two ranks on two GPUs: sums through the GPUs' memory and by NCCL, in graphs. One start for all cases."""

from typing import Any

import pytest
import torch
from parallel_cases import ON_GPUS, PARAMS, SETTINGS, flood, outcome, seen_by_ranks

from labkit import LADDER, InferenceEngine, load_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_ranks("gpus", tmp_path_factory.mktemp("gpus"), "cuda")


@pytest.mark.parametrize("case", [*ON_GPUS, "wide"])
def test_two_gpus_make_the_tokens_of_one(seen: list[dict[str, Any]], case: str):
    options = LADDER[case].options if case in ON_GPUS else None
    engine = InferenceEngine(load_model("random:small-llama"), options, device="cuda:0", **SETTINGS)
    expected = outcome(engine)
    leader, follower = (each[case] for each in seen)
    assert leader == expected
    assert follower["counters"] == expected["counters"]


def test_a_flood_with_sums_by_nccl(seen: list[dict[str, Any]]):
    expected = flood(InferenceEngine(load_model("random:small-llama"), device="cuda:0", **SETTINGS))
    assert seen[0]["NCCL"] == expected
    assert seen[1]["NCCL"]["counters"] == expected["counters"]


def test_a_model_too_large_for_one_gpu_runs_on_two(seen: list[dict[str, Any]]):
    leader, follower = (each["budget"] for each in seen)
    assert leader == ["too large for one", *(params.max_new_tokens for params in PARAMS)]
    assert follower == ["too large for one"]


def test_no_gpu_is_waited_for_longer_than_the_timeout(seen: list[dict[str, Any]]):
    for each in (rank["late"] for rank in seen):
        assert each["error"] == "rank 1 did not come within 3 seconds"
        assert each["seconds"] < 20
