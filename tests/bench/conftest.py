"""An engine for the tests of measuring."""

import pytest

from labkit import LADDER, CacheConfig, InferenceEngine


@pytest.fixture(scope="module")
def engine(tiny):
    return InferenceEngine(tiny, LADDER["00"].options, device="cpu", cache=CacheConfig(prefix_cache=False))
