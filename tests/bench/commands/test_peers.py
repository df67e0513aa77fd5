"""`peers`: a table, a record, and decode by itself where it can be told."""

import pytest

from labkit.bench.commands import peers as command
from labkit.bench.peers import together as peers

pytestmark = pytest.mark.slow

TINY = "--model data/tiny-gpt2 --device cpu --no-prefix-cache --pretok --no-stop-on-eos"


def test_the_command_prints_a_table_and_writes_a_record(recorded, capsys):
    line = f"peers {TINY} --num-requests 3 --max-batch-size 3 --max-new-tokens 4 --rounds 1 --rungs 05,10"
    record = recorded(f"{line} --prompt-repeats 1,4")
    said = capsys.readouterr().out
    assert "labkit 10 is" in said and "Limit of decode" in said
    assert f"Left out: {peers.VLLM} (not installed here)" in said
    assert record["kind"] == "peers" and len(record["samples"]) == 2 * 6
    assert record["settings"]["left_out"] == {
        peers.COMPILED: "its requests have prompts and answers of one length, and these differ",
        peers.VLLM: "not installed here",
    }
    assert record["settings"]["versions"]["transformers"]
    for sample in record["samples"]:
        assert sample["tokens"] == 12 and sample["equal_requests"] == 3
        decode = sample["seconds"] - sample["first_token_seconds"]
        assert sample["decode_tokens_per_second"] == pytest.approx(9 / decode)


def test_only_the_engines_that_are_named_run(recorded):
    line = f"peers {TINY} --num-requests 2 --max-new-tokens 3 --rounds 1 --rungs 10 --others static,vllm"
    record = recorded(line)
    assert [sample["engine"] for sample in record["samples"]] == ["labkit 10"] * 2 + [peers.STATIC] * 2
    assert record["settings"]["others"] == ["static", "vllm"]
    assert record["settings"]["left_out"] == {peers.VLLM: "not installed here"}


def test_decode_alone_is_told_where_one_batch_holds_everyone():
    run = peers.PeerRun(3.0, 1.0, ((1, 2, 3), (4, 5, 6)))
    assert command.decode_rate(run, True) == 2
    assert command.decode_rate(run, False) is None
    assert command.decode_rate(peers.PeerRun(3.0, None, run.token_ids), True) is None
    assert command.decode_rate(peers.PeerRun(3.0, 1.0, ((1,), (2,))), True) is None
