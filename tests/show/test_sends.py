"""What is sent to the device, step by step."""

import pandas as pd
from figures import texts

from labkit import show
from labkit.show.sends import OF_REQUESTS, OF_STEPS, Sends


def test_sent_numbers_are_written_in_thousands_from_a_thousand_on():
    steps = [(1, True, 1, 1, 3, 1000), (2, False, 0, 0, 0, 0), (3, False, 0, 1, 1, 999)]
    requests = [(step, 0, 0, 4 + step, "in_place", "nothing") for step in (1, 2, 3)]
    sends = Sends(pd.DataFrame(requests, columns=OF_REQUESTS), pd.DataFrame(steps, columns=OF_STEPS))
    written = texts(show.draw_sends(sends))
    assert {"1.0k", "0", "999"} <= set(written) and "1000" not in written
