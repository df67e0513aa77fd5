"""Engine options: which value needs which other, and that they cannot be changed."""

import re
from dataclasses import FrozenInstanceError

import pytest

from labkit import LADDER, EngineOptions
from labkit.errors import OptionError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_tables": "resident"}, "block_tables = 'resident' needs block_info = 'mutable'"),
        (
            {"block_tables": "resident", "block_info": "mutable"},
            "block_tables = 'resident' needs kv_write = 'identity_pos' or 'fused'",
        ),
        ({"layer_tables": "shared"}, "layer_tables = 'shared' needs block_tables = 'resident'"),
        ({"kv_write": "fused"}, "kv_write = 'fused' needs block_tables = 'resident'"),
        ({"launch": "graph"}, "launch = 'graph' needs kv_write = 'fused'"),
        ({"layer_kernels": "fused"}, "layer_kernels = 'fused' needs kv_write = 'fused'"),
        ({"readback": "one_behind"}, "readback = 'one_behind' needs block_tables = 'resident'"),
        ({"latency": "hidden"}, "latency = 'hidden' needs layer_kernels = 'fused'"),
        ({"latency": "lanes"}, "latency = 'lanes' is not an option; choose from 'exposed', 'hidden'"),
        ({"sampler": "searched"}, "sampler = 'searched' needs block_tables = 'resident'"),
        ({"prefixes": "blocks"}, "prefixes = 'blocks' needs layer_tables = 'shared'"),
    ],
)
def test_an_option_says_which_other_it_needs(changes, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        EngineOptions(**changes)


def test_options_cannot_be_changed_under_an_engine():
    with pytest.raises(FrozenInstanceError):
        LADDER["00"].options.block_tables = "rebuilt"
