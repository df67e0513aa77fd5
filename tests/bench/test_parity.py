"""Parity: the dense reference and transformers make the engine's tokens."""

import pytest

from labkit import InferenceEngine
from labkit.bench import parity_table


@pytest.mark.slow
def test_parity_is_said_prompt_by_prompt(tiny):
    from labkit import LADDER

    engines = {name: InferenceEngine(tiny, LADDER[name].options, device="cpu") for name in ("00", "05")}
    table = parity_table(engines, ["To be", "O"], 6)
    assert list(table.columns) == ["00 = dense", "00 = transformers", "05 = dense", "05 = transformers"]
    assert list(table.index) == ["'To be'", "'O'"] and table.all().all()
