"""Command lines that cannot be: the parser names the argument, before anything is measured."""

import pytest
import torch

from labkit.bench import __main__ as bench_main
from labkit.bench import flags
from labkit.model.random_configs import RANDOM_CONFIGS


@pytest.fixture(scope="module")
def parser():
    return bench_main.make_parser()


@pytest.mark.parametrize("value", [0, 2**64 - 1])
def test_a_seed_of_64_bits_is_taken(parser, value):
    assert parser.parse_args(["compare", f"--seed={value}"]).seed == value


def test_prompts_of_a_length_are_made_once_whatever_their_number(monkeypatch, parser):
    """Or a million requests would be a million encodings, and as many copies of the text."""
    encoded = []

    class Model:
        device = torch.device("cpu")
        config = RANDOM_CONFIGS["gpt2"]

        class tokenizer:
            @staticmethod
            def encode(text):
                encoded.append(text)
                return [1] * len(text.split())

    monkeypatch.setattr(flags, "model_of", lambda args: Model)
    args = parser.parse_args(["compare", "--num-requests=5", "--prompt-repeats=1,3", "--prompt=a"])
    workload = flags.workload_of(args)
    assert sorted(encoded) == ["a", "a a a"]
    assert [request.prompt for request in workload.requests] == ["a", "a a a", "a", "a a a", "a"]
    assert workload.scheduler.prefill_max_tokens == 1 + 3 + 1 + 3 + 1


def test_rungs_in_any_order_are_taken(parser):
    assert parser.parse_args(["ladder", "--rungs", "05,00"]).rungs == ("05", "00")
