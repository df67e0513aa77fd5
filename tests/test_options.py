"""Engine options cannot be changed; tests/bad_input/settings.py has which value needs which other."""

from dataclasses import FrozenInstanceError

import pytest

from labkit import LADDER


def test_options_cannot_be_changed_under_an_engine():
    with pytest.raises(FrozenInstanceError):
        LADDER["00"].options.block_tables = "rebuilt"
