"""An engine for the tests of measuring."""

import pytest

from labkit import CacheConfig, InferenceEngine


@pytest.fixture(scope="module")
def engine(tiny):
    return InferenceEngine(tiny, device="cpu", cache=CacheConfig(prefix_cache=False))
