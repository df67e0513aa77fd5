"""The registry: architectures by their name in config.json. `test_engine_architectures.py` adds one."""

import pytest

from labkit.errors import CheckpointError
from labkit.model import GPT2, Network
from labkit.model.checkpoint import RANDOM_CONFIGS
from labkit.model.registry import ARCHITECTURES, architecture_of


def test_gpt2_is_the_one_there_is():
    assert ARCHITECTURES == {"gpt2": GPT2}
    assert architecture_of("gpt2") is GPT2


def test_each_is_a_network_whose_configs_name_it():
    raw = {"vocab_size": 9, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 2}
    assert issubclass(GPT2, Network) and GPT2.read_config(raw).model_type == "gpt2"
    assert {config.model_type for config in RANDOM_CONFIGS.values()} <= set(ARCHITECTURES)


@pytest.mark.parametrize("model_type", ["llama", "GPT2", "", None, 2, ["gpt2"], {"gpt2": 1}], ids=repr)
def test_any_other_name_is_refused_with_those_that_there_are(model_type):
    with pytest.raises(CheckpointError, match=r"^config.json has model_type = .*; labkit runs 'gpt2' only$"):
        architecture_of(model_type)
