"""No test of streaming hangs."""

from streaming_helpers import nobody_waits_for_ever  # noqa: F401  (an autouse fixture)
