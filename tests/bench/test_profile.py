"""A profiled step: its ranges, its operators, its record."""

import pytest
from helpers import make_engine

from labkit.bench import profile_decode_step
from labkit.watch import steady_decode


@pytest.mark.slow
def test_profile_adds_up(tiny):
    engine = make_engine(tiny, prefix_cache=False, block_size=64)
    with steady_decode(engine, [[1, 2], [3, 4, 5]]):
        profile = profile_decode_step(engine)
    table = profile.table()
    assert table["% of step"].sum() == pytest.approx(100, abs=0.5)
    assert table["operators"].sum() == len(profile.operators)
    append = engine.model.config.n_layer * 2
    assert table.loc["labkit.kv.append_token", "operators"] >= 2 * append  # a key and a value each
    assert profile.batch_size == 2 and profile.kernels == ()
