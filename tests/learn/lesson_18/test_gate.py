"""Lesson 18's gates: the hints' functions with one likely mistake each are refused, with its sentence, by two
processes that stay; what a rank can do to the other ends both, and the next check starts new ones."""

import re

import pytest
from gate_tests import mistake_tests

from labkit.learn.lesson_18 import gate
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "18_several_gpus.ipynb"
SHARD, LAYER, ORDER = range(3)
BY_HEAD = "unflatten(0, (3, num_heads, -1)).tensor_split(size, dim=1)[rank].flatten(0, 2)"
MISTAKES = [
    (SHARD, BY_HEAD, "tensor_split(size)[rank]", "cut each of the three"),
    (SHARD, BY_HEAD, "unflatten(0, (3, -1)).tensor_split(size, dim=1)[rank].flatten(0, 1)",
     "which are 1.5 heads"),
    (SHARD, BY_HEAD, "tensor_split(size, dim=-1)[rank]", "is cut by outputs, which are the rows"),
    (SHARD, "by_head.tensor_split(size, dim=1)[rank]", "by_head",
     "has attention_out [8, 8], expected [8, 4]"),
    (SHARD, "mlp_out.weight.tensor_split(size, dim=1)", "mlp_out.weight.tensor_split(size, dim=0)",
     "is cut by inputs"),
    (SHARD, "mlp_out.weight.tensor_split(size, dim=1)[rank]",
     "mlp_out.weight.tensor_split(size, dim=1)[1 - rank]", "take its own inner values"),
    (SHARD, "layer.attention_out.bias if is_first else None", "layer.attention_out.bias",
     "the bias of attention_out is in the sum 2 times"),
    (SHARD, "layer.mlp_out.bias if is_first else None", "None", "in the sum 0 times"),
    (SHARD, "heads(layer.qkv.bias)", "layer.qkv.bias", "raised RuntimeError"),
    (LAYER, "x = x + ranks.sum(out)", "x = ranks.sum(x + out)", "the first residual is in the sum"),
    (LAYER, "x = x + ranks.sum(out)", "x = ranks.sum(out)", "a sum stands directly after a product"),
    (LAYER, "return x + ranks.sum(out)", "x + ranks.sum(out)", "raised TypeError"),
    (LAYER, "return x + ranks.sum(out)", "return ranks.sum(x + out)", "the second residual is in the sum"),
    (LAYER, "return x + ranks.sum(out)", "return x + out", "and 1 sums were made"),
    (LAYER, "layer.attention_out(layer.attend(layer.qkv(x)))\n    x = x + ranks.sum(out)",
     "layer.attention_out(ranks.sum(layer.attend(layer.qkv(x))))\n    x = x + out", "are different values"),
    (LAYER, "x = x + ranks.sum(out)", "x = x + rank.sum(out)", "raised NameError"),
    (ORDER, "return 0, -seen, load, turn", "return 0, seen, load, turn", "the longest prefix wins"),
    (ORDER, "return 0, -seen, load, turn", "return 0, -seen, turn", "then the smaller load wins"),
    (ORDER, "return 0, -seen, load, turn", "return 0, -seen, load, -turn", "whoever was chosen longer ago"),
    (ORDER, "return 1, load, turn", "return", "raised TypeError"),
    (ORDER, "return 1, load, turn", "return 1, turn", "then the smaller load wins"),
    (ORDER, "if load > most", "if load > most + 1", "load comes first"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)


def teardown_module():
    gate.PAIR.close()


def two_sums(x, layer, ranks):
    """What is right: a sum in each half, and the residual after it."""
    x = x + ranks.sum(layer.attention_out(layer.attend(layer.qkv(x))))
    return x + ranks.sum(layer.mlp_out(layer.mlp_in(x)))


def kills_one(x, layer, ranks):
    import os
    import signal

    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ranks.sum(x)


def test_no_check_waits_for_ever_and_the_next_one_starts_anew():
    """The lesson itself shows the sentence for a rank that does not come."""
    report = gate.PAIR.prove("layer", kills_one)
    assert not report.ok and re.search("gone|did not come|died", report.text), report.text
    assert gate.PAIR.prove("layer", two_sums).ok


def test_the_processes_end_with_the_one_that_asks():
    assert gate.PAIR.prove("layer", two_sums).ok
    job = gate.PAIR._job
    job.stdin.close()
    assert job.wait(timeout=60) == 0
    gate.PAIR.close()


def test_a_part_that_cannot_be_told_to_others_is_refused():
    local = object()

    def uses_the_notebook(x, layer, ranks):
        return local

    assert "uses local" in gate.PAIR.prove("layer", uses_the_notebook).text
