"""Network: what it says where an architecture gives nothing; what it does, the architectures' tests show."""

import pytest

from labkit.errors import OptionError
from labkit.model import GPT2Config, Network

CONFIG = GPT2Config(vocab_size=5, n_positions=6, n_embd=4, n_layer=1, n_head=2)


class Echo(Network):
    """An architecture that gives nothing."""


def test_what_an_architecture_does_not_give_is_refused_by_its_name():
    echo = Echo(CONFIG)
    with pytest.raises(OptionError, match=r"layer_kernels = 'fused' .* does not fit Echo: its layers"):
        echo.decoder_weights()
    with pytest.raises(OptionError, match=r"^Echo cannot be made a model of transformers$"):
        echo.as_transformers()
