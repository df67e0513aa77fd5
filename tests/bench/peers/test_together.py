"""All peers on one workload, and what is said of one that cannot run."""

import pytest
from peer_workloads import LEVEL, workload
from sockets import network_calls

from labkit import load_model
from labkit.bench.limit import forward_flops
from labkit.bench.peers import together
from labkit.bench.workload import Workload
from labkit.model.random_configs import RANDOM_CONFIGS

pytestmark = pytest.mark.slow

TINY = "--model data/tiny-gpt2 --device cpu --no-prefix-cache --pretok --no-stop-on-eos"


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch):
    def broken(work, reference, cache_implementation):
        if cache_implementation == "static":
            raise RuntimeError("no static cache today\nand a long trace")
        return made_up

    made_up = lambda: together.PeerRun(1.0, 0.5, ((1,), (2,), (3,)))  # noqa: E731
    monkeypatch.setattr(together, "generate_peer", broken)
    ran = together.run_peers(workload(), ("00",), rounds=1, others=(together.DYNAMIC, together.STATIC))
    assert ran.left_out[together.STATIC] == "RuntimeError: no static cache today"
    assert list(ran.runs) == ["labkit 00", together.DYNAMIC]
    assert ran.equal_requests(ran.runs[together.DYNAMIC][0]) == 0


def test_the_command_prints_a_table_and_writes_a_record(recorded, capsys):
    line = f"peers {TINY} --num-requests 3 --max-batch-size 3 --max-new-tokens 4 --rounds 1 --rungs 05,10"
    record = recorded(f"{line} --prompt-repeats 1,4")
    said = capsys.readouterr().out
    assert "labkit 05 -> labkit 10: x" in said and "Limit of decode" in said
    assert f"Left out: {together.VLLM} (not installed here)" in said
    assert record["kind"] == "peers" and len(record["samples"]) == 2 * 6
    assert record["settings"]["left_out"] == {
        together.COMPILED: "its requests have prompts and answers of one length, and these differ",
        together.VLLM: "not installed here",
    }
    assert record["settings"]["versions"]["transformers"]
    for sample in record["samples"]:
        assert sample["tokens"] == 12 and sample["equal_requests"] == 3
        decode = sample["seconds"] - sample["first_token_seconds"]
        assert sample["decode_tokens_per_second"] == pytest.approx(9 / decode)


def test_only_the_engines_that_are_named_run(recorded):
    line = f"peers {TINY} --num-requests 2 --max-new-tokens 3 --rounds 1 --rungs 10 --others static,vllm"
    record = recorded(line)
    assert [sample["engine"] for sample in record["samples"]] == ["labkit 10"] * 2 + [together.STATIC] * 2
    assert record["settings"]["others"] == ["static", "vllm"]
    assert record["settings"]["left_out"] == {together.VLLM: "not installed here"}


def test_decode_alone_is_told_where_one_batch_holds_everyone():
    run = together.PeerRun(3.0, 1.0, ((1, 2, 3), (4, 5, 6)))
    assert together.decode_rate(run, True) == 2
    assert together.decode_rate(run, False) is None
    assert together.decode_rate(together.PeerRun(3.0, None, run.token_ids), True) is None
    assert together.decode_rate(together.PeerRun(3.0, 1.0, ((1,), (2,))), True) is None


def test_every_load_runs_through_those_that_can_serve_it_and_opens_no_port(recorded, capsys):
    with network_calls() as calls:
        made = recorded(
            "loads --model random:small --device cpu --rungs 05,10 --num-requests 3 --max-new-tokens 3 "
            "--max-batch-size 3 --rounds 1 --rate 200"
        )
    assert calls == []
    printed = capsys.readouterr().out
    assert "limit: bytes and arithmetic" in printed
    assert f"Left out of arrivals: {together.DYNAMIC} (a batch starts together" in printed
    ran = {}
    for sample in made["samples"]:
        ran.setdefault(sample["load"], []).append(sample["engine"])
    batches = {
        "labkit 05",
        "labkit 10",
        together.DYNAMIC,
        together.PADDED,
        together.CONTINUOUS,
        together.COMPILED,
    }
    assert {load: set(engines) for load, engines in ran.items()} == {
        "sampled": batches,
        "ragged": batches - {together.COMPILED},
        "prompt-heavy": batches,
        "arrivals": {"labkit 05", "labkit 10", together.CONTINUOUS},
        "shared-prefix": batches,
    }
    for sample in made["samples"]:
        assert sample["tokens"] == made["settings"]["limits"][sample["load"]]["tokens"]
        assert sample["equal_requests"] == (None if sample["load"] == "sampled" else 3)
        assert bool(sample["ttft"]) == bool(sample["itl_us"]) == (sample["load"] == "arrivals")


def test_what_prompts_share_is_computed_once():
    config = RANDOM_CONFIGS["gpt2"]
    whole = forward_flops(config, 4, 4)
    assert together.prompt_flops(config, [(1, 2, 3, 4)]) == whole
    assert together.prompt_flops(config, [(1, 2, 3, 4), [1, 2, 3, 4]]) == whole
    ends = forward_flops(config, 2, 4) + forward_flops(config, 1, 4)
    others = [(1, 2, 3, 4), (1, 2, 9, 9), (1, 2, 9, 8)]
    assert together.prompt_flops(config, others) == whole + ends
    assert together.prompt_flops(config, [(1, 2), (1, 2, 3)]) == (
        forward_flops(config, 2, 2) + forward_flops(config, 1, 3)
    )


@pytest.mark.cuda
def test_on_a_gpu_the_static_cache_is_compiled():
    work = Workload.alike(load_model("data/tiny-gpt2"), LEVEL, 8, device="cuda")
    ran = together.run_peers(work, ("00", "10"), rounds=1)
    assert ran.compiled or together.STATIC in ran.left_out
    assert {together.DYNAMIC, together.CONTINUOUS, together.COMPILED} <= set(ran.runs), ran.left_out
