"""Lesson 06: what a step sends, and what that costs."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import pandas as pd

from labkit.engine import InferenceEngine
from labkit.engine.step.host import DecodeStep
from labkit.learn.gates.gate import raised
from labkit.results import StepProfile
from labkit.watch import record_inputs, record_sends, steady_decode, steady_prompts
from labkit.watch.sends import Told

WIDE = ("token ids", "positions")  # that rung 05 sends as int64; all else is int32


def what_is_new(before: Told, now: Told, picked: Sequence[int], block_size: int) -> pd.DataFrame:
    """How many of the numbers that a step sends the device could have known, a row per kind of number.

    before: what was sent a step earlier, of the same requests. picked: the tokens that the device made then.
    """
    rows = {}
    for name, numbers in now.items():
        new = np.array(numbers)
        if name == "token ids":
            made = new == np.array(picked)
            counts = {"its own tokens": made.sum(), "new to the GPU": (~made).sum()}
        else:
            old = np.array(before[name])
            same = new == old
            next_one = ~same & ((new == old + 1) | ((new == 0) & (old == block_size - 1)))
            if "block" in name:  # a block's number is no count
                next_one[:] = False
            counts = {"as before": same.sum(), "one more": next_one.sum()}
            counts["new to the GPU"] = len(new) - sum(counts.values())
        rows[name] = {"numbers": len(new), **counts}
    columns = ["numbers", "as before", "one more", "its own tokens", "new to the GPU"]
    table = pd.DataFrame(rows).T.reindex(columns=columns).fillna(0).astype(int)
    table.loc["all"] = table.sum()
    return table


def sent_until_done(engine: InferenceEngine) -> pd.DataFrame:
    """Copies and bytes that the host of any rung sends until no work is left, a row per decode step."""
    steps = []
    while engine.has_work:
        if isinstance(engine.decode_step, DecodeStep):
            for told in record_inputs(engine, num_steps=1):
                tensors = [engine.kv_manager.num_layers if "layer" in name else 1 for name in told]
                num_bytes = sum(len(sent) * (8 if name in WIDE else 4) for name, sent in told.items())
                steps.append({"copies": sum(tensors), "bytes": num_bytes})
        else:
            steps += record_sends(engine, num_steps=1).steps[["copies", "bytes"]].to_dict("records")
    return pd.DataFrame(steps)


def steady_traffic(engine: InferenceEngine, num_steps: int = 128) -> str:
    """What the host of an engine whose slots may be a reader's sends for 8 requests, in a line."""
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))):
            steps = record_sends(engine, num_steps).steps
    except Exception as error:  # whatever the reader's code raises
        return f"sent: not counted, because the engine {raised(error)}"
    copies, num_bytes, sending = steps["copies"].sum(), steps["bytes"].sum(), (steps["copies"] > 0).sum()
    return f"sent in {sending} of {num_steps} steps: {copies} copies, {num_bytes:,} bytes"


def copy_costs(profile: StepProfile) -> dict[str, float]:
    """The small host-to-device copies of a profiled step: how many, the median time of one on the GPU, and
    the median time from the start of one to that of the next."""
    copies = sorted((k for k in profile.kernels if k.name.startswith("Memcpy HtoD")), key=lambda k: k.start)
    small = copies[1:]  # the first is the block tables'
    return {
        "small copies": len(small),
        "GPU time of one (µs)": round(median(copy.duration for copy in small), 1),
        "from one to the next (µs)": round(float(np.median(np.diff([copy.start for copy in small]))), 1),
    }
