"""The registry: architectures by their name in config.json."""

import pytest

from labkit.errors import CheckpointError
from labkit.model import GPT2
from labkit.model.registry import architecture_of


def test_an_architecture_is_found_by_its_name_and_any_other_is_refused_with_those_that_there_are():
    assert architecture_of("gpt2") is GPT2
    for other in ("GPT2", "", None, 2, ["gpt2"], {"gpt2": 1}):
        with pytest.raises(CheckpointError, match=r"^config.json has model_type = .*; labkit runs .*'gpt2'"):
            architecture_of(other)
