"""No test of streaming hangs; some are of streams by threads and on event loops."""

from async_helpers import submit_to  # noqa: F401
from streaming_helpers import nobody_waits_for_ever  # noqa: F401  (an autouse fixture)
