"""`loads`: five loads, a table, a record, and what could not be served."""

import pytest
from sockets import network_calls

from labkit.bench import five_loads as command
from labkit.bench.limit import forward_flops
from labkit.bench.peers.together import COMPILED, CONTINUOUS, DYNAMIC, PADDED
from labkit.model.random_configs import RANDOM_CONFIGS

pytestmark = pytest.mark.slow


def test_every_load_runs_through_those_that_can_serve_it_and_opens_no_port(recorded, capsys):
    with network_calls() as calls:
        made = recorded(
            "loads --model random:small --device cpu --rungs 05,10 --num-requests 3 --max-new-tokens 3 "
            "--max-batch-size 3 --rounds 1 --rate 200"
        )
    assert calls == []
    printed = capsys.readouterr().out
    assert "limit: bytes and arithmetic" in printed
    assert f"Left out of arrivals: {DYNAMIC} (a batch starts together" in printed
    ran = {}
    for sample in made["samples"]:
        ran.setdefault(sample["load"], []).append(sample["engine"])
    batches = {"labkit 05", "labkit 10", DYNAMIC, PADDED, CONTINUOUS, COMPILED}
    assert {load: set(engines) for load, engines in ran.items()} == {
        "sampled": batches,
        "ragged": batches - {COMPILED},
        "prompt-heavy": batches,
        "arrivals": {"labkit 05", "labkit 10", CONTINUOUS},
        "shared-prefix": batches,
    }
    for sample in made["samples"]:
        assert sample["tokens"] == made["settings"]["limits"][sample["load"]]["tokens"]
        assert sample["equal_requests"] == (None if sample["load"] == "sampled" else 3)
        assert bool(sample["ttft"]) == bool(sample["itl_us"]) == (sample["load"] == "arrivals")


def test_what_prompts_share_is_computed_once():
    config = RANDOM_CONFIGS["gpt2"]
    whole = forward_flops(config, 4, 4)
    assert command.prompt_flops(config, [(1, 2, 3, 4)]) == whole
    assert command.prompt_flops(config, [(1, 2, 3, 4), [1, 2, 3, 4]]) == whole
    ends = forward_flops(config, 2, 4) + forward_flops(config, 1, 4)
    others = [(1, 2, 3, 4), (1, 2, 9, 9), (1, 2, 9, 8)]
    assert command.prompt_flops(config, others) == whole + ends
    assert command.prompt_flops(config, [(1, 2), (1, 2, 3)]) == (
        forward_flops(config, 2, 2) + forward_flops(config, 1, 3)
    )
