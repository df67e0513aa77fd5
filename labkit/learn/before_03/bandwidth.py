"""How much of the memory's bandwidth a kernel gets, by the number of its programs: recorded."""

import pandas as pd

from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.results import AttentionTimeRecord
from labkit.results.attention_time import ONE_PROGRAM


def programs_table(record: AttentionTimeRecord, context_len: int) -> pd.DataFrame:
    """One layer's attention with one program per request and head, a row per batch size: the programs, what
    they read, for how long, and the part of a large copy's rate.

    context_len: tokens of each request, the same work for each program.
    """
    heads = RANDOM_CONFIGS["gpt2"].num_heads
    rows = [
        {
            "programs": sample.batch_size * heads,
            "MB read": round(sample.num_bytes / 1e6, 1),
            "µs": round(sample.us, 1),
            "% of a copy's rate": round(100 * sample.rate / record.bandwidth, 1),
        }
        for sample in sorted(record.samples, key=lambda sample: sample.batch_size)
        if (sample.kernel, sample.context_len) == (ONE_PROGRAM, context_len)
    ]
    return pd.DataFrame(rows).set_index("programs")
