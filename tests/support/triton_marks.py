"""Which tests need Triton."""

import pytest

from labkit.kernels import triton_status

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
